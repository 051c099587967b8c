"""The body of a transformer: token ids in, final hidden states of chosen positions out. Policy and critic put a head on it.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N chosen positions, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from postrl.learning.collate import Prefix, collate, collate_shared
from postrl.types import Rollout


class Body(nn.Module):
    """Runs once over right-padded rows: causal attention never looks at the padding behind it, so no mask is needed.

    Args:
        model: what is trained; `transformer` is its part without a head.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def transformer(self) -> Any:
        """The transformers model that gives hidden states."""
        return self.model

    @property
    def in_float32(self) -> tuple[nn.Module, ...]:
        """Modules that compute in float32, whatever the rest computes in."""
        return ()

    def check_head(self) -> None:
        """Refuse a model whose head is not understood, where there is anything to misunderstand."""

    def hidden(self, input_ids: Tensor, select_bL: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Final hidden states [N, D] of the chosen positions, in row order, in the compute dtype.

        Args:
            input_ids: int64 [b, L], right-padded; with a `prefix`, what follows it.
            select_bL: bool, the N positions.
        """
        hidden = self._after(prefix, input_ids) if prefix else self._run(input_ids=input_ids, use_cache=False)
        return hidden[select_bL]

    def _run(self, **inputs: Any) -> Tensor:
        hidden: Tensor = self.transformer(**inputs).last_hidden_state
        return hidden

    # -- prompts that are read once --------------------------------------------------------------------------------------

    def _after(self, prefix: Prefix, input_ids: Tensor) -> Tensor:
        """Final hidden states of rows that continue shared prompts: the prompts' keys and values are computed once,
        handed to every row, and take their gradients from all of them."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.transformer.config)
        width = prefix.ids_PL.shape[1]
        if width:
            self._run(input_ids=prefix.ids_PL, past_key_values=cache, use_cache=True)
            cache.batch_select_indices(prefix.owner_b)
        length_b1 = prefix.lengths_P[prefix.owner_b][:, None]
        mask = torch.ones(len(input_ids), width + input_ids.shape[1], dtype=torch.long, device=input_ids.device)
        mask[:, :width] = torch.arange(width, device=input_ids.device) < length_b1
        positions = length_b1 + torch.arange(input_ids.shape[1], device=input_ids.device)
        return self._run(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )

    def can_share_prompts(self) -> bool:
        """Whether keys and values can be handed on: full attention in every layer, nothing recomputed, and positions
        that are told and not counted (an example shows it)."""
        config = self.transformer.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
        if kinds != {"full_attention"} or (window and getattr(config, "use_sliding_window", True)):
            return False
        return not self.transformer.is_gradient_checkpointing and self._sharing_changes_nothing()

    def _sharing_changes_nothing(self) -> bool:
        device = next(self.parameters()).device
        lengths = (
            (2, 3),
            (2, 1),
            (5, 2),
        )  # of prompt and completion: the first prompt is padded, and read for two rows
        rows = [
            Rollout("", i, [*range(1, p + 1)], [*range(7, 7 + n)], [], [], "stop") for i, (p, n) in enumerate(lengths)
        ]
        mask = torch.tensor([[t < len(row.completion_ids) for t in range(3)] for row in rows])
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                shared_ids, shared_select, _, _, prefix = collate_shared(rows, mask, device)
                ids, select, _, _ = collate(rows, mask, device)
                plain_ND = self.hidden(ids, select)
                difference = self.hidden(shared_ids, shared_select, prefix) - plain_ND
        except (AttributeError, TypeError, ValueError):  # its cache cannot be dealt out, or it takes no positions
            return False
        finally:
            self.train(was_training)
        return bool(difference.abs().max() < 1e-3 * plain_ND.abs().max())
