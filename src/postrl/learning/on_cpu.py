"""What ranks on CPUs do otherwise, for speed and memory: all of it is here, and `passes_on` is the one way to it.

A rank on a GPU reaches nothing of it, and none of it has ever run on one. The numbers are the same to rounding.

- `grouped_attention`: given a mask, transformers repeats keys and values for the query heads that share them, and on a CPU
  that copy costs as much as the attention. Here the query heads of one key head become rows of one query.
- `SharedPrompts`: the prompt of a group is read once for all its completions, where the model is not sharded (one rank, in
  float32), has full attention and recomputes nothing.
- Activations are kept, and what the heap holds after a micro-batch is given back.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from postrl.learning.body import Body, evaluating
from postrl.learning.collate import Prefix, collate, padded_right
from postrl.learning.microbatch import Packing
from postrl.learning.passes import Passes, replace_sdpa
from postrl.types import Batch, Rollout

GROUPED = "postrl_cpu"
"""What transformers calls `grouped_attention`."""


def passes_on(device: torch.device, dtype: torch.dtype) -> Passes:
    """Those that fit the device: the one condition for all that is here."""
    return (PassesOnCPU if device.type == "cpu" else Passes)(device, dtype)


class PassesOnCPU(Passes):
    """See the module."""

    recompute = False
    shares_prompts = False

    def fit(self, model: Any) -> None:
        use_grouped(model)

    def begin(self, body: Body, *, sharded: bool) -> None:
        self.shares_prompts = not sharded and can_share_prompts(body)

    def inputs(
        self, rollouts: Sequence[Rollout], mask_BT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Prefix | None]:
        if self.shares_prompts and mask_BT.numel():
            return collate_shared(rollouts, mask_BT)
        return super().inputs(rollouts, mask_BT)

    def packing(self, batch: Batch) -> Packing | None:
        if not self.shares_prompts:
            return None
        prompts = [len(rollout.prompt_ids) for rollout in batch.rollouts]
        completions = [len(rollout.completion_ids) for rollout in batch.rollouts]
        return shared_packing(prompts, completions, batch.group_B.tolist())

    def give_back_memory(self) -> None:
        """glibc keeps the holes that activations leave in its heap, and the next large tensor grows the heap all the same:
        without this a trainer keeps half as much again as it uses."""
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


# -- attention where queries share keys and values ---------------------------------------------------------------------


def use_grouped(model: Any) -> None:
    """Switch a model that would use sdpa to `grouped_attention`; leaves every other model as it is."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1), getattr(config, "num_key_value_heads", 1) or 1
    if _attends_fully(config) and heads != (1, 1):
        replace_sdpa(model, GROUPED, grouped_attention)


def grouped_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Scaled dot-product attention; query [b, H, S, d], key and value [b, K, L, d], H a multiple of K.

    The mask is [b, 1, S, L] or None (then causal, for S > 1).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or (attention_mask is None and length > 1) or kwargs.get("position_bias") is not None:
        out: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out
    folded = query.reshape(batch, key.shape[1], groups * length, width)
    if attention_mask is not None and length > 1:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    attended = torch.nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, dropout_p=kwargs.get("dropout", 0.0), scale=kwargs.get("scaling")
    )
    return attended.reshape(batch, heads, length, width).transpose(1, 2).contiguous(), None


def _attends_fully(config: Any) -> bool:
    return set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}


# -- prompts that are read once ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedPrompts:
    """Prompts that are read once for all their completions. P prompts, padded on the right to L - 1 tokens."""

    ids_PL: Tensor
    """int64: the prompts without their last token."""
    lengths_P: Tensor
    owner_b: Tensor
    """Which prompt each row continues."""

    def continued(self, transformer: Any, input_ids: Tensor) -> Tensor:
        """See `Prefix`: the prompts' keys and values are computed once, handed to every row, and take their gradients from
        all of them."""
        from transformers import DynamicCache

        cache = DynamicCache(config=transformer.config)
        width = self.ids_PL.shape[1]
        if width:
            transformer(input_ids=self.ids_PL, past_key_values=cache, use_cache=True)
            cache.batch_select_indices(self.owner_b)
        length_b1 = self.lengths_P[self.owner_b][:, None]
        mask = torch.ones(len(input_ids), width + input_ids.shape[1], dtype=torch.long)
        mask[:, :width] = torch.arange(width) < length_b1
        positions = length_b1 + torch.arange(input_ids.shape[1])
        hidden: Tensor = transformer(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return hidden


def collate_shared(
    rollouts: Sequence[Rollout], mask_BT: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, SharedPrompts]:
    """As `collate`, for rows of which several continue the same prompt: each prompt is read once.

    A row's input is the prompt's last token and the completion without its last, so position t predicts token t.
    """
    prompts: dict[tuple[int, ...], int] = {}
    owner = [prompts.setdefault(tuple(r.prompt_ids), len(prompts)) for r in rollouts]
    shared = SharedPrompts(
        ids_PL=padded_right([prompt[:-1] for prompt in prompts]),
        lengths_P=torch.tensor([len(prompt) - 1 for prompt in prompts]),
        owner_b=torch.tensor(owner),
    )
    input_ids = padded_right([[r.prompt_ids[-1], *r.completion_ids][:-1] for r in rollouts])
    following = padded_right([r.completion_ids for r in rollouts])
    place = mask_BT[:, : following.shape[1]].cpu()
    return input_ids, place, following[place], place, shared


def shared_packing(prompts: Sequence[int], completions: Sequence[int], groups: Sequence[int]) -> Packing:
    """The rows of a group stay together, groups with the longest row first, and a prompt counts once.

    Args:
        prompts, completions: tokens of each row.
        groups: group id of each row.
    """
    lengths = [p + n for p, n in zip(prompts, completions, strict=True)]
    longest: dict[int, int] = {}
    for group, length in zip(groups, lengths, strict=True):
        longest[group] = max(longest.get(group, 0), length)

    def cost(rows: Sequence[int]) -> int:
        shared = {groups[row]: prompts[row] for row in rows}
        return len(shared) * max(shared.values()) + len(rows) * max(completions[row] for row in rows)

    return Packing(lambda row: (-longest[groups[row]], groups[row], -lengths[row], row), cost)


def can_share_prompts(body: Body) -> bool:
    """Whether the keys and values of a model can be handed on: full attention in every layer, nothing recomputed,
    and positions that are told and not counted (an example shows it)."""
    config = body.transformer.config.get_text_config()
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    if not _attends_fully(config) or (window and getattr(config, "use_sliding_window", True)):
        return False
    if body.transformer.is_gradient_checkpointing:
        return False
    lengths = ((2, 3), (2, 1), (5, 2))  # of prompt and completion: the first prompt is padded, and read for two rows
    rows = [Rollout("", i, [*range(1, p + 1)], [*range(7, 7 + n)], [], [], "stop") for i, (p, n) in enumerate(lengths)]
    mask = torch.tensor([[t < len(row.completion_ids) for t in range(3)] for row in rows])
    ids, select, _, _ = collate(rows, mask, torch.device("cpu"))
    shared_ids, shared_select, _, _, prompts = collate_shared(rows, mask)
    try:
        with evaluating(body):
            plain_ND = body.hidden(ids, select)
            difference = body.hidden(shared_ids, shared_select, prompts) - plain_ND
    except (AttributeError, TypeError, ValueError):  # its cache cannot be dealt out, or it takes no positions
        return False
    return bool(difference.abs().max() < 1e-3 * plain_ND.abs().max())
