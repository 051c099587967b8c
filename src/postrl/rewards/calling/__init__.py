"""Processes that answer and can be ended, and reward functions in such processes."""
