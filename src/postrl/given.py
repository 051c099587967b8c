"""What a script brings as Python objects instead of settings."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from postrl.algorithms.presets import Preset
from postrl.rewards.registry import RewardSpec
from postrl.user_code import search_path


@dataclass
class Given:
    """Nothing by default: a run of the command line has its settings."""

    model: Any = None
    """A causal language model (or peft model)."""
    peft_config: Any = None
    rewards: list[RewardSpec] = field(default_factory=list)
    train: Any = None
    """Rows to train on: a datasets.Dataset or a list of dicts."""
    evaluate: Any = None
    tokenizer: Any = None
    preset: Preset | None = None
    """The algorithm, where the script has registered it: the worker reads from it what to sample."""

    def dumps(self) -> bytes:
        """What the rollout worker needs of it, pickled: from parent to child on one host only."""
        import cloudpickle

        of_the_worker = replace(self, model=None, peft_config=None)
        return bytes(cloudpickle.dumps((search_path(), cloudpickle.dumps(of_the_worker))))

    @classmethod
    def loads(cls, content: bytes) -> Given:
        """What `dumps` wrote, in a process of the same host: it runs code. Modules of the script are looked for last."""
        search, pickled = pickle.loads(content)
        sys.path.extend(entry for entry in search if entry not in sys.path)
        given = pickle.loads(pickled)
        assert isinstance(given, cls)
        return given
