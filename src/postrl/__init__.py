"""postrl: RL post-training of language models.

    from postrl import GRPOTrainer, GRPOConfig

Names are loaded when first used, so that `import postrl` (and the command line) stays free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from postrl.version import __version__

if TYPE_CHECKING:
    from postrl.config import GRPOConfig as GRPOConfig
    from postrl.config import PPOConfig as PPOConfig
    from postrl.config import RLOOConfig as RLOOConfig
    from postrl.errors import PostrlError as PostrlError
    from postrl.trainer import GRPOTrainer as GRPOTrainer
    from postrl.trainer import PPOTrainer as PPOTrainer
    from postrl.trainer import RLOOTrainer as RLOOTrainer
    from postrl.types import Batch as Batch
    from postrl.types import Group as Group
    from postrl.types import Rollout as Rollout

_HOMES = {
    "GRPOConfig": "postrl.config",
    "GRPOTrainer": "postrl.trainer",
    "PPOConfig": "postrl.config",
    "PPOTrainer": "postrl.trainer",
    "RLOOConfig": "postrl.config",
    "RLOOTrainer": "postrl.trainer",
    "PostrlError": "postrl.errors",
    "Rollout": "postrl.types",
    "Group": "postrl.types",
    "Batch": "postrl.types",
}

__all__ = [
    "Batch",
    "GRPOConfig",
    "GRPOTrainer",
    "Group",
    "PPOConfig",
    "PPOTrainer",
    "PostrlError",
    "RLOOConfig",
    "RLOOTrainer",
    "Rollout",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'postrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
