"""The critic: a value model of its own beside the policy, with an optimizer and a learning rate of its own.

With LoRA the critic is a frozen copy of the policy's weights with adapters of its own and a trained head. Who trains
adapters has no room for the 16 bytes a weight that training all of a second model takes; a frozen copy takes 2 in
bfloat16, and a copy shared with the policy would tie the sharding and the forward passes of the two together.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from postrl.errors import UsageError
from postrl.learning.collate import scatter
from postrl.learning.loading import load_model, load_tokenizer, with_lora
from postrl.learning.merging import merged_weights
from postrl.learning.model_folder import saving
from postrl.learning.optimizing import Optimizing
from postrl.learning.sharding import Ranks, saved_state, whole
from postrl.learning.value_folder import save_value_model
from postrl.learning.value_model import ValueModel
from postrl.models.packaged import PACKAGED, packaged_model
from postrl.types import Batch, Rollout

if TYPE_CHECKING:
    from postrl.config import GRPOConfig


class Critic(Optimizing[ValueModel]):
    """Learns to predict the return from the state before each completion token.

    Args:
        body: transformers model without a head, see `critic_body`.
        config: the settings of the run; the learning rate is critic_learning_rate, its schedule that of the policy.
        total_updates: optimizer steps of the whole run, warm-up of the critic included.
    """

    def __init__(self, body: Any, *, config: GRPOConfig, ranks: Ranks, dtype: str, total_updates: int) -> None:
        config = replace(config, learning_rate=config.critic_learning_rate)
        super().__init__(
            ValueModel(body), name="critic", config=config, ranks=ranks, dtype=dtype, total_updates=total_updates
        )

    def values(self, batch: Batch) -> Tensor:
        """float32 [B, T]: the value before each token of the mask, 0 elsewhere, on every rank (a collective)."""
        return self._for_all_rows(batch, self.module, lambda micro: self._outputs(micro.rollouts, micro.mask_BT)[0])

    def values_and_end(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`values`, and float32 [B]: the value after the last token of completions that were cut at the token limit, 0 for
        the others; from the same forward passes (a collective)."""
        ends = [[len(rollout.completion_ids)] for rollout in batch.rollouts]
        end_B1 = torch.tensor(ends, dtype=torch.int64, device=batch.mask_BT.device).reshape(-1, 1)
        values_BT = self.values(_one_token_longer(batch, end_B1))
        return values_BT.scatter(-1, end_B1, 0.0)[:, :-1], values_BT.gather(-1, end_B1).squeeze(-1)

    def _outputs(self, rollouts: Sequence[Rollout], mask_BT: Tensor) -> tuple[Tensor]:
        ids, select, _, place, prefix = self.passes.inputs(rollouts, mask_BT)
        return (scatter(self.module(ids, select, prefix), place),)

    def save(self, folder: str | Path, tokenizer: Any) -> None:
        """A Hugging Face folder with adapters merged in, see `save_value_model` (a collective).

        Raises:
            PostrlError: the disk is full or not writable, or an adapter cannot be merged.
        """
        body = self.module.transformer
        state = saved_state(body, merged_weights(body), self.ranks)
        head_1D = whole(self.module.head.weight.detach())
        if not self.ranks.is_main:
            return
        with saving("the critic", folder):
            save_value_model(Path(folder), body.config, state, head_1D.cpu())
            tokenizer.save_pretrained(folder)


def _one_token_longer(batch: Batch, end_B1: Tensor) -> Batch:
    """The batch with a token behind each completion that was cut: the value before it is the one after the last. Which
    token does not matter, nothing that is read comes after it."""
    cut_B = torch.tensor([r.finish_reason == "length" for r in batch.rollouts], dtype=torch.bool, device=end_B1.device)
    mask_BT = pad(batch.mask_BT, (0, 1)).scatter(-1, end_B1, cut_B.unsqueeze(-1))
    rollouts = [replace(rollout, completion_ids=[*rollout.completion_ids, 0]) for rollout in batch.rollouts]
    return replace(batch, rollouts=rollouts, mask_BT=mask_BT)


def critic_body(config: GRPOConfig, policy: Any, tokenizer: Any, peft_config: Any = None) -> Any:
    """What the critic starts from: a copy of the policy's body, or that of critic_model; LoRA layers where the policy has
    them.

    Args:
        policy: the model as it is to be trained, before anything has changed it.
        tokenizer: the policy's.
        peft_config: the adapters' as a script gives it.

    Raises:
        UsageError: there is no such critic_model, or its tokens are not the policy's.
    """
    if config.critic_model is None:
        return copy.deepcopy(_body_of(policy))
    name, flag = config.critic_model, "--critic-model"
    path = str(packaged_model(name)) if name in PACKAGED else name
    if peft_config is None and (config.adapter or not config.lora_rank) and hasattr(policy, "peft_config"):
        peft_config = _adapters_like(policy.peft_config["default"])
    config = replace(config, revision=None, adapter=None)  # the policy's
    _check_tokens(name, load_tokenizer(config, path, flag), tokenizer)
    return _body_of(with_lora(load_model(config, path, flag, peft_config=peft_config), config, peft_config))


def _body_of(model: Any) -> Any:
    """The transformers model under a language-model head, LoRA layers and all."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal_lm.base_model


def _adapters_like(peft_config: Any) -> Any:
    """The adapters of a model that a script brings, for a model with other layers: its targets are named in full there."""
    like = copy.deepcopy(peft_config)
    like.base_model_name_or_path, like.inference_mode = None, False
    if not isinstance(like.target_modules, str):
        like.target_modules = {name.rpartition(".")[2] for name in like.target_modules}
    return like


def _check_tokens(name: str, found: Any, expected: Any) -> None:
    if found.get_vocab() != expected.get_vocab():
        raise UsageError(
            f"the tokenizer of critic_model {name} ({len(found)} tokens) is another than the policy's ({len(expected)} tokens)",
            hint="the critic reads the policy's tokens: give a model of the same family, or leave --critic-model out",
        )
