"""Run in the sandbox when a level is tried: checks from the inside that it holds. Prints what it found it is made of.

probe.py LEVEL OUTSIDE PARENT        OUTSIDE: a folder of the caller's; PARENT: the caller's process id
"""

from __future__ import annotations

import errno
import os
import sys
import threading


def main(level: str, outside: str, parent: int) -> str:
    with open("inside", "w", encoding="utf-8") as file:
        file.write("its own folder is writable")
    thread = threading.Thread(target=os.getpid)
    thread.start()
    thread.join()
    import socket

    filtered = fails(lambda: socket.socket(), errno.EPERM)
    if level == "basic":
        return f"{'seccomp + ' if filtered else ''}limits; not a security boundary"
    expect(filtered, "seccomp does not hold: a socket can be opened")
    expect(fails(lambda: os.open(f"{outside}/outside", os.O_CREAT | os.O_WRONLY)), "files outside can be written")
    expect(fails(lambda: os.open(f"/proc/{parent}/environ", os.O_RDONLY)), "the caller's environment can be read")
    if level == "landlock":
        expect(fails(lambda: os.kill(parent, 0)), "the caller can be signalled")
        return f"Landlock {landlock()} + seccomp + limits"
    expect(fails(lambda: os.kill(parent, 0), errno.ESRCH), "no process namespace: the caller can be seen")
    expect(not os.path.exists(outside), "no mount namespace: folders outside can be seen")
    parts = ["namespaces", "private root", *([f"Landlock {landlock()}"] if landlock() else []), "seccomp", "limits"]
    return " + ".join(parts) + ("" if os.path.exists("/proc/self") else "; no /proc")


def landlock() -> int:
    import ctypes

    return max(0, int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)))


def fails(action: object, code: int | None = None) -> bool:
    try:
        action()  # type: ignore[operator]
    except OSError as error:
        return code is None or error.errno == code
    return False


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        print(otherwise)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))  # noqa: T201
