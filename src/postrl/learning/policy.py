"""The policy as the learner sees it: tokens in, log-probs of the completion tokens out.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N trainable tokens in the micro-batch,
T longest completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from postrl.errors import PostrlError
from postrl.learning.logps import token_logps
from postrl.types import Rollout


@dataclass(frozen=True)
class Prefix:
    """Prompts that are read once for all their completions. P prompts, padded on the right to L - 1 tokens."""

    ids_PL: Tensor
    """int64: the prompts without their last token."""
    lengths_P: Tensor
    owner_b: Tensor
    """Which prompt each row continues."""


class Policy(nn.Module):
    """A causal language model whose forward pass gives log-probs and entropies of chosen tokens.

    The body runs once over right-padded rows (causal attention never looks at the padding behind it, so no mask is
    needed); the head runs on the N chosen positions only, in chunks.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        config = self.causal_lm.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale = _logit_scale(config)

    @property
    def causal_lm(self) -> Any:
        """The transformers model, out of its peft wrapper if it has one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def has_adapter(self) -> bool:
        return hasattr(self.model, "disable_adapter")

    @property
    def peft_config(self) -> Any:
        """The peft.LoraConfig of the adapter; None without one."""
        return self.model.peft_config["default"] if self.has_adapter else None

    def forward(
        self,
        input_ids: Tensor,
        select_bL: Tensor,
        targets_N: Tensor,
        temperature: float,
        reference: bool = False,
        prefix: Prefix | None = None,
        train_entropy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, float32 [N], at `temperature`.

        Args:
            input_ids: int64 [b, L], right-padded; with a `prefix`, what follows it.
            select_bL: bool, the positions whose next token is a target.
            targets_N: those next tokens, in row order.
            reference: with the adapter switched off.
            train_entropy: whether the entropies have a gradient.
        """
        causal_lm = self.causal_lm
        with self.model.disable_adapter() if reference else nullcontext():
            hidden = self._after(prefix, input_ids) if prefix else self._body(input_ids=input_ids, use_cache=False)
            head = causal_lm.get_output_embeddings()
            return token_logps(
                hidden[select_bL],
                _head_weight(head),
                targets_N,
                bias_V=head.bias,
                temperature=temperature / self._scale,
                softcap=self._softcap,
                train_entropy=train_entropy,
            )

    def _body(self, **inputs: Any) -> Tensor:
        hidden: Tensor = self.causal_lm.base_model(**inputs).last_hidden_state
        return hidden

    def _after(self, prefix: Prefix, input_ids: Tensor) -> Tensor:
        """Final hidden states of rows that continue shared prompts: the prompts' keys and values are computed once,
        handed to every row, and take their gradients from all of them."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.causal_lm.config)
        width = prefix.ids_PL.shape[1]
        if width:
            self._body(input_ids=prefix.ids_PL, past_key_values=cache, use_cache=True)
            cache.batch_select_indices(prefix.owner_b)
        length_b1 = prefix.lengths_P[prefix.owner_b][:, None]
        mask = torch.ones(len(input_ids), width + input_ids.shape[1], dtype=torch.long, device=input_ids.device)
        mask[:, :width] = torch.arange(width, device=input_ids.device) < length_b1
        positions = length_b1 + torch.arange(input_ids.shape[1], device=input_ids.device)
        return self._body(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )

    def can_share_prompts(self) -> bool:
        """Whether keys and values can be handed on: full attention in every layer, nothing recomputed, and positions
        that are told and not counted (an example shows it)."""
        config = self.causal_lm.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
        if kinds != {"full_attention"} or (window and getattr(config, "use_sliding_window", True)):
            return False
        return not self.causal_lm.is_gradient_checkpointing and self._sharing_changes_nothing()

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
                *shared, _, prefix = collate_shared(rows, mask, device)
                *plain, _ = collate(rows, mask, device)
                difference = self(*shared, 1.0, prefix=prefix)[0] - self(*plain, 1.0)[0]
        except (AttributeError, TypeError, ValueError):  # its cache cannot be dealt out, or it takes no positions
            return False
        finally:
            self.train(was_training)
        return bool(difference.abs().max() < 1e-3)

    def check_head(self) -> None:
        """Compare one short text with the model's own forward pass: an architecture that treats its logits in a way
        this class does not know is refused instead of trained wrongly.

        Raises:
            PostrlError: the log-probs differ.
        """
        device = next(self.parameters()).device
        vocabulary = self.causal_lm.get_output_embeddings().weight.shape[0]
        ids = torch.arange(1, 9, device=device)[None] % vocabulary
        select = torch.ones_like(ids, dtype=torch.bool)
        select[:, -1] = False
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                ours, _ = self(ids, select, ids[0, 1:], 1.0)
                logits = self.causal_lm(input_ids=ids, use_cache=False).logits[0, :-1]
                theirs = logits.float().log_softmax(-1)
        finally:
            self.train(was_training)
        difference = (ours - theirs.gather(-1, ids[0, 1:, None]).squeeze(-1)).abs().max().item()
        # A model caps and scales bfloat16 logits in bfloat16, whose steps are 0.125 at a logit of 16.
        if not difference < (1e-3 if logits.dtype == torch.float32 else 0.25):
            raise PostrlError(
                f"{type(self.causal_lm).__name__} computes its logits in a way that postrl does not know: "
                f"log-probs differ by {difference:.2g}",
                hint="report the model; its forward pass after the last hidden state needs support in learning/policy.py",
            )


def _head_weight(head: Any) -> Tensor:
    """With the head's LoRA adapter, if it has one: log-probs are computed from the weight, past the module. Its dropout
    is left out."""
    weight: Tensor = head.weight
    if not hasattr(head, "lora_A") or head.disable_adapters:
        return weight
    delta: Tensor = head.scaling["default"] * (head.lora_B["default"].weight @ head.lora_A["default"].weight)
    return weight + delta.to(weight.dtype)


def _logit_scale(config: Any) -> float:
    """Constant that multiplies the logits: Cohere's logit_scale, the inverse of Granite's logits_scaling."""
    if (scale := getattr(config, "logit_scale", None)) is not None:
        return float(scale)
    if (scaling := getattr(config, "logits_scaling", None)) is not None:
        return 1.0 / float(scaling)
    return 1.0


def collate(
    rollouts: Sequence[Rollout], mask_BT: Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A micro-batch as `Policy.forward` takes it.

    Args:
        rollouts: the rows, b of them; none gives one dummy token, so that every rank runs the same collectives.
        mask_BT: bool [b, T], the completion tokens whose log-probs are wanted.

    Returns:
        input_ids [b, L], select_bL, targets_N, and place_bT: bool [b, T], where the N values belong.
    """
    if not rollouts:
        return (
            torch.zeros(1, 1, dtype=torch.long, device=device),
            torch.zeros(1, 1, dtype=torch.bool, device=device),
            torch.zeros(0, dtype=torch.long, device=device),
            torch.zeros(0, mask_BT.shape[1], dtype=torch.bool, device=device),
        )
    width = max(len(r.prompt_ids) + len(r.completion_ids) for r in rollouts)
    input_ids = torch.zeros(len(rollouts), width, dtype=torch.long)
    select = torch.zeros(len(rollouts), width, dtype=torch.bool)
    place = torch.zeros(mask_BT.shape, dtype=torch.bool)
    wanted = mask_BT.cpu()
    for i, rollout in enumerate(rollouts):
        start, n = len(rollout.prompt_ids), len(rollout.completion_ids)
        input_ids[i, : start + n] = torch.tensor([*rollout.prompt_ids, *rollout.completion_ids])
        place[i, :n] = wanted[i, :n]
        select[i, start - 1 : start + n - 1] = wanted[i, :n]
    targets = input_ids.roll(-1, dims=1)[select]
    return input_ids.to(device), select.to(device), targets.to(device), place.to(device)


def collate_shared(
    rollouts: Sequence[Rollout], mask_BT: Tensor, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Prefix]:
    """As `collate`, for rows of which several continue the same prompt: each prompt is read once.

    A row's input is the prompt's last token and the completion without its last, so position t predicts token t.
    """
    prompts: dict[tuple[int, ...], int] = {}
    owner = [prompts.setdefault(tuple(r.prompt_ids), len(prompts)) for r in rollouts]
    lengths = [len(prompt) - 1 for prompt in prompts]
    prefix_ids = torch.zeros(len(prompts), max(lengths), dtype=torch.long)
    for i, prompt in enumerate(prompts):
        prefix_ids[i, : lengths[i]] = torch.tensor(prompt[:-1], dtype=torch.long)
    width = max(len(r.completion_ids) for r in rollouts)
    input_ids = torch.zeros(len(rollouts), width, dtype=torch.long)
    following = torch.zeros(len(rollouts), width, dtype=torch.long)
    for i, rollout in enumerate(rollouts):
        n = len(rollout.completion_ids)
        following[i, :n] = torch.tensor(rollout.completion_ids)
        input_ids[i, :n] = torch.tensor([rollout.prompt_ids[-1], *rollout.completion_ids[:-1]])
    place = mask_BT[:, :width].cpu()
    prefix = Prefix(prefix_ids.to(device), torch.tensor(lengths, device=device), torch.tensor(owner, device=device))
    return input_ids.to(device), place.to(device), following[place].to(device), place.to(device), prefix


def scatter(values_N: Tensor, place_bT: Tensor) -> Tensor:
    """[N] back to [b, T], zeros elsewhere; differentiable."""
    return values_N.new_zeros(place_bT.shape).masked_scatter(place_bT, values_N)
