"""How rows pass through a model on one rank: with which attention, which rows together, what is read of them.

This is the way of GPUs. What ranks on CPUs do otherwise is in `postrl.learning.on_cpu`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from postrl.learning.body import Body
from postrl.learning.collate import Prefix, collate
from postrl.learning.microbatch import Packing
from postrl.types import Batch, Rollout

REPEATED = "postrl_repeated"
"""What transformers calls `repeated_attention`."""


class Passes:
    """The passes of a model that computes in `dtype` on `device`."""

    recompute = True
    """Whether activations are computed again in the backward pass, where the settings do not say."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def fit(self, model: Any) -> None:
        """Give a transformers model that would use sdpa the attention that fits the device."""
        if self.dtype == torch.float32:
            replace_sdpa(model, REPEATED, repeated_attention)

    def begin(self, body: Body, *, sharded: bool) -> None:
        """Look at a model that is on its device, before its first pass."""

    def inputs(
        self, rollouts: Sequence[Rollout], mask_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Prefix | None]:
        """input_ids, select_bL, targets_N and place_bT as `collate` gives them, and what the rows continue."""
        return (*collate(rollouts, mask_BT, self.device), None)

    def packing(self, batch: Batch) -> Packing | None:
        """Which rows of a batch go into one pass, see `microbatch.plan`; None: those of like length."""
        return None

    def give_back_memory(self) -> None:
        """Hand freed memory back to the machine, where it would be kept."""


def replace_sdpa(model: Any, name: str, attention: Any) -> None:
    """Switch a model that would use sdpa to an attention function, which transformers knows by `name` from now on."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config.get_text_config()._attn_implementation != "sdpa":
        return
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


def repeated_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' sdpa attention with keys and values repeated for each query head; query [b, H, S, d], key and value
    [b, K, L, d], H a multiple of K, mask [b, 1, S, L] or None (then causal, for S > 1).

    Where queries share keys and values, transformers hands them to torch as they are when no mask is given. Of torch's
    kernels on GPUs those for 16 bits take them; in float32 only the one that holds all scores, [b, H, L, L], does. Repeated,
    they go to the one that holds none.
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    groups = query.shape[1] // key.shape[1]
    ungrouped: Any = SimpleNamespace(is_causal=getattr(module, "is_causal", True))
    out: tuple[Tensor, None] = sdpa_attention_forward(
        ungrouped, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **kwargs
    )
    return out
