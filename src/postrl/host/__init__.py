"""The machine that a run is on, and what may be unusual about it: import paths, encodings, folders, limits."""
