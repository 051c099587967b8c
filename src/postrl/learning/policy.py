"""The policy as the learner sees it: tokens in, log-probs of the completion tokens out.

Shapes: b rows of a micro-batch, L padded length of prompt and completion, N trainable tokens in the micro-batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.body import Body, evaluating
from postrl.learning.collate import Prefix, Support
from postrl.learning.logps import token_logps


class Policy(Body):
    """A causal language model whose forward pass gives log-probs and entropies of chosen tokens.

    The head runs on the N chosen positions only, in chunks.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = self.causal_lm.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale = _logit_scale(config)

    @property
    def causal_lm(self) -> Any:
        """The transformers model, out of its peft wrapper if it has one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def transformer(self) -> Any:
        return self.causal_lm.base_model

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
        support: Support | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, float32 [N], at `temperature`.

        Args:
            input_ids: int64 [b, L], right-padded; with a `prefix`, what follows it.
            select_bL: bool, the positions whose next token is a target.
            targets_N: those next tokens, in row order.
            reference: with the adapter switched off.
            train_entropy: whether the entropies have a gradient.
            support: the tokens that each target was drawn from, see `collate.support_of`.
        """
        causal_lm = self.causal_lm
        with self.model.disable_adapter() if reference else nullcontext():
            hidden_ND = self.hidden(input_ids, select_bL, prefix)
            head = causal_lm.get_output_embeddings()
            return token_logps(
                hidden_ND,
                _head_weight(head),
                targets_N,
                bias_V=head.bias,
                temperature=temperature / self._scale,
                softcap=self._softcap,
                train_entropy=train_entropy,
                support=support,
            )

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
        with evaluating(self):
            ours, _ = self(ids, select, ids[0, 1:], 1.0)
            logits = self.causal_lm(input_ids=ids, use_cache=False).logits[0, :-1]
            theirs = logits.float().log_softmax(-1)
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
