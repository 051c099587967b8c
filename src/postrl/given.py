"""What a script brings as Python objects instead of settings."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from postrl.algorithms.presets import Preset
from postrl.errors import UsageError
from postrl.rewards.registry import RewardSpec, resolve, with_tokenizers
from postrl.rows.given import given_rows
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
    adapted: bool = False
    """The model has the adapter that the settings, or peft_config, ask for."""

    @classmethod
    def by_script(
        cls,
        model: Any,
        reward_funcs: Any,
        train: Any,
        evaluate: Any,
        tokenizer: Any,
        peft_config: Any,
        reward_tokenizers: Any = None,
    ) -> Given:
        """The arguments of a trainer, `model` being a name or an object.

        Raises:
            UsageError: the model is neither, or nobody can know its tokenizer; a reward is not one.
            DataError: there are no rows in a data set.
        """
        loaded = None if isinstance(model, str | PurePath) else model
        if loaded is not None and not hasattr(loaded, "save_pretrained"):
            raise UsageError(
                f"model is a {type(loaded).__name__}, expected a name or a transformers model",
                hint="GRPOTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', ...)",
            )
        given = cls(loaded, peft_config, tokenizer=tokenizer)
        if loaded is not None and tokenizer is None and not given.model_name:
            raise UsageError(
                "model is a module that was not loaded from anywhere, so its tokenizer is not known",
                hint="give processing_class=tokenizer",
            )
        funcs = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        given.rewards = with_tokenizers([resolve(func) for func in funcs if func is not None], reward_tokenizers)
        given.train = None if train is None else given_rows(train, "train")
        given.evaluate = None if evaluate is None else given_rows(evaluate, "eval")
        return given

    @property
    def model_name(self) -> str:
        """Where the model was loaded from, as far as it knows."""
        return str(getattr(getattr(self.model, "config", None), "_name_or_path", "") or "")

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
