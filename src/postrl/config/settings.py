"""Every setting of a run, once: the dataclass field is the flag, the help text and the YAML key.

A default is the setting we would defend. Checks that compare two settings are in `postrl.config.checks` and run before
any process starts. Same meaning, TRL's name; TRL's own names are converted (see `postrl.config.trl_names`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from postrl.config.rollout_settings import RolloutSettings
from postrl.config.training_settings import TrainingSettings


@dataclass(kw_only=True)
class Settings(TrainingSettings, RolloutSettings):
    """The fields, those of rollouts first. `postrl.config.config` checks them, reads and writes them."""

    @classmethod
    def part(cls, name: str) -> frozenset[str]:
        """The settings that something depends on; see `part_of` of `setting`."""
        return frozenset(f.name for f in fields(Settings) if name in f.metadata["part_of"])

    @property
    def rollouts_per_step(self) -> int:
        return self.prompts_per_step * self.num_generations

    @property
    def max_loras(self) -> int:
        """LoRA adapters that a server holds at once: those that a rollout may need, and the one before them."""
        return self.max_staleness + 2

    def microbatch_tokens(self, device: str) -> int:
        """`max_tokens_per_microbatch`, or its default on a device of this type ("cuda", "cpu")."""
        longest = self.max_prompt_length + self.max_completion_length
        return self.max_tokens_per_microbatch or max(longest, 1536 if device == "cpu" else 8192)
