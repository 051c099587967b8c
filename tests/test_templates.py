from __future__ import annotations

from pathlib import Path

from postrl.rewards.registry import load, resolve

TEMPLATES = Path(__file__).parent.parent / "templates"


def test_the_reward_to_start_from_scores_texts_and_messages() -> None:
    score = load(resolve(f"{TEMPLATES}/reward.py:score"))
    messages = [{"role": "assistant", "content": "It is 8."}]
    assert score(completions=["It is 7.", messages], answer=["7", "7"], prompts=["?", "?"]) == [1.0, 0.0]
