"""What runs inside a sandbox's processes before any code of a candidate does. See `postrl.rewards.code.sandbox`.

    keeper        started by `Sandbox.start`, unconfined; starts the rest, ends it, removes its folder
      init        level strict: process 1 of the new namespaces, confined like the program
        program   what the caller wants run, confined before its first line

These modules are also imported without the package around them (`confine.keeper`, by an interpreter without
site-packages), so they import only each other and the few standard modules that load in a moment.
"""
