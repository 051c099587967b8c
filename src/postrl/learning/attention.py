"""Attention of transformers models in float32 on GPUs; that of CPUs is `postrl.learning.on_cpu.grouped_attention`.

Where queries share keys and values (grouped-query attention), transformers hands them to torch as they are when no mask is
given. Of torch's kernels those for 16 bits take them; in float32 only the one that holds all scores, [b, H, L, L], does.
Repeated, they go to the one that holds none.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

REPEATED = "postrl_repeated"
"""What transformers calls `repeated_attention`."""


def use_repeated(model: Any) -> None:
    """Switch a model that would use sdpa to `repeated_attention`; leaves every other model as it is."""
    replace_sdpa(model, REPEATED, repeated_attention)


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
    [b, K, L, d], H a multiple of K, mask [b, 1, S, L] or None (then causal, for S > 1)."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    groups = query.shape[1] // key.shape[1]
    ungrouped: Any = SimpleNamespace(is_causal=getattr(module, "is_causal", True))
    out: tuple[Tensor, None] = sdpa_attention_forward(
        ungrouped, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **kwargs
    )
    return out
