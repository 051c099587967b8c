"""Reward functions in processes of their own, which can be ended."""
