"""Rewards without training: on rows, on a finished run, on known hacks."""
