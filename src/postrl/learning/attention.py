"""Attention on CPUs without copying keys and values for each query head.

transformers repeats keys and values when queries share them (grouped-query attention) and a mask is given; on a CPU
that copy costs as much as the attention. Here the query heads of one key head become rows of one query instead: the
same products, nothing copied. Registered as the attention implementation "postrl_cpu".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "postrl_cpu"


def use_on_cpu(model: Any) -> None:
    """Switch a model that would use sdpa on a CPU to `grouped_attention`; leaves every other model as it is."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config._attn_implementation != "sdpa" or kinds != {"full_attention"} or _heads(config) == (1, 1):
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def _heads(config: Any) -> tuple[int, int]:
    return getattr(config, "num_attention_heads", 1), getattr(config, "num_key_value_heads", 1) or 1


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention; query [b, H, S, d], key and value [b, K, L, d], H a multiple of K.

    The mask is [b, 1, S, L] or None (then causal, for S > 1).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or (attention_mask is None and length > 1) or kwargs.get("position_bias") is not None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
        return out
    folded = query.reshape(batch, key.shape[1], groups * length, width)
    if attention_mask is not None and length > 1:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    attended = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return attended.reshape(batch, heads, length, width).transpose(1, 2).contiguous(), None
