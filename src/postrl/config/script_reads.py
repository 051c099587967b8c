"""What scripts, and callbacks written for transformers, read off the settings beside postrl's own: TRL's names and a few
methods of its arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from postrl.config.engines import engine_of
from postrl.config.script_fields import THEIRS
from postrl.config.settings import Settings
from postrl.config.trl_names import TRLS
from postrl.host.ranks import local_rank, rank, world_size


def this_device() -> Any:
    """The torch.device of this process."""
    import torch

    return torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def _per_device(args: Any) -> int:
    ranks = args.num_processes or world_size()
    return int(max(1, args.rollouts_per_step // args.minibatches // ranks))


def _greater_is_better(args: Any) -> bool | None:
    metric = args.metric_for_best_model
    return None if metric is None else not str(metric).endswith("loss")


READ: dict[str, Callable[[Any], Any]] = {
    "per_device_train_batch_size": _per_device,
    "train_batch_size": _per_device,
    "per_device_eval_batch_size": lambda args: 8,
    "eval_batch_size": lambda args: 8,
    "gradient_accumulation_steps": lambda args: 1,
    "steps_per_generation": lambda args: args.minibatches,
    "generation_batch_size": lambda args: args.rollouts_per_step,
    "use_vllm": lambda args: engine_of(args).servers,
    "bf16": lambda args: args.dtype == "bfloat16",
    "fp16": lambda args: False,
    "eval_strategy": lambda args: "steps" if args.eval_steps else "no",
    "save_strategy": lambda args: "steps" if args.save_steps else "no",
    "logging_strategy": lambda args: "steps",
    "do_eval": lambda args: bool(args.eval_steps),
    "eval_delay": lambda args: 0,
    "greater_is_better": _greater_is_better,
    "hub_model_id": lambda args: args.push_to_hub,
    "resume_from_checkpoint": lambda args: args.resume or None,
    "shuffle_dataset": lambda args: args.shuffle,
    "log_level": lambda args: "passive",
    "device": lambda args: this_device(),
    "n_gpu": lambda args: int(args.device.type == "cuda"),
    "local_rank": lambda args: local_rank() if "LOCAL_RANK" in os.environ else -1,
    "local_process_index": lambda args: local_rank(),
    "process_index": lambda args: rank(),
    "world_size": lambda args: world_size(),
    "should_save": lambda args: args.process_index == 0,
    "should_log": lambda args: args.process_index == 0,
}
"""Names of TRL's arguments that follow from our settings, where they were not given themselves."""


class ReadByScripts(Settings):
    """TRL's names can be read: as they were given, else as they follow from the settings, else None. One that is set later
    changes the settings that it means."""

    given_as: dict[str, Any]

    @classmethod
    def settled(cls, given: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in THEIRS or "given_as" not in self.__dict__:
            super().__setattr__(name, value)
            return
        given = {**self.given_as, name: value}
        before, after = self.settled(self.given_as), self.settled(given)
        for ours in (ours for ours in after if after[ours] != before[ours]):
            super().__setattr__(ours, after[ours])
        self.given_as = given

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("given_as", {})
        if name in given:
            return given[name]
        if name in READ:
            return READ[name](self)
        if name in TRLS:
            return None
        raise AttributeError(
            f"{type(self).__name__} has no setting {name}: `postrl grpo --help-all` lists all of postrl's, and TRL's can be "
            "read too"
        )

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(Settings)}

    def to_json_string(self) -> str:
        """The settings as JSON, as transformers' callbacks write them down."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """The settings as trackers take them: lists as text."""
        return {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in self.to_dict().items()}

    def get_process_log_level(self) -> int:
        """Level for `logging`, as scripts set it up with: INFO in the main process, else WARNING."""
        return 20 if self.process_index == 0 else 30

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "") -> Iterator[None]:
        """Around what every process does alike (such as caching a data set). They need not wait for each other here."""
        yield
