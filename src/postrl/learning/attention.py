"""Attention where queries share keys and values (grouped-query attention), as CPUs and float32 on GPUs want it.

- On a CPU transformers repeats keys and values when a mask is given, and that copy costs as much as the attention. Here
  the query heads of one key head become rows of one query instead: the same products, nothing copied ("postrl_cpu").
- On a GPU it hands them on as they are when no mask is given. Of torch's kernels those for 16 bits take them; in
  float32 only the one that holds all scores, [b, H, L, L], does. Repeated, they go to the one that holds none
  ("postrl_repeated").
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

NAME = "postrl_cpu"
REPEATED = "postrl_repeated"


def use_fitting_attention(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Switch a model that would use sdpa to what fits the device; leaves every other model as it is."""
    if device.type == "cpu":
        use_on_cpu(model)
    elif dtype == torch.float32:
        use_repeated(model)


def use_on_cpu(model: Any) -> None:
    """Switch a model that would use sdpa on a CPU to `grouped_attention`; leaves every other model as it is."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds == {"full_attention"} and _heads(config) != (1, 1):
        _replace_sdpa(model, NAME, grouped_attention)


def use_repeated(model: Any) -> None:
    """Switch a model that would use sdpa to `repeated_attention`; leaves every other model as it is."""
    _replace_sdpa(model, REPEATED, repeated_attention)


def _replace_sdpa(model: Any, name: str, attention: Any) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if model.config.get_text_config()._attn_implementation != "sdpa":
        return
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


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


def repeated_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' sdpa attention with keys and values repeated for each query head; shapes as `grouped_attention`."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    groups = query.shape[1] // key.shape[1]
    ungrouped: Any = SimpleNamespace(is_causal=getattr(module, "is_causal", True))
    out: tuple[Tensor, None] = sdpa_attention_forward(
        ungrouped, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **kwargs
    )
    return out
