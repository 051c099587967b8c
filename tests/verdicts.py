"""Reward functions of tests that train. A reward process imports the module of its function: this one loads nothing heavy."""

from __future__ import annotations

from postrl.rewards.score import Score


def even(completions, completion_ids, **columns):
    """A verdict that about half of a random model's completions get, in every group."""
    right = [sum(ids) % 2 == 0 for ids in completion_ids]
    return [Score(float(x), "correct" if x else "wrong") for x in right]


def spread(completions, completion_ids, **columns):
    """Differs between random completions, and calls some of them right."""
    scores = [sum(ids) % 8 / 8 for ids in completion_ids]
    return [Score(score, "correct" if score > 0.5 else "wrong") for score in scores]


def token_sums(completion_ids, **columns):
    """A reward that differs between random completions."""
    return [float(sum(ids) % 7) for ids in completion_ids]
