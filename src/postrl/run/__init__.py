"""A run: its folder, its metrics, its trackers, how its processes find and answer each other."""
