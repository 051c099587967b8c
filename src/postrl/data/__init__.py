"""Data sets as prompts: where their rows come from, which prompts a run has, in which order they come."""
