"""The weights of a model as others load them: whole, under transformers' own names, LoRA adapters merged in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.sharding import whole
from postrl.models.adapter import Adapter

TIED = {"lm_head", "embed_out", "embed_tokens", "wte", "embed_in"}
"""Names of heads and embeddings that may share a weight."""


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a transformers model with its name there, on its device (a collective).

    Tied weights come once, under the name that transformers saves.

    Raises:
        PostrlError: an adapter that cannot be merged.
    """
    deltas = _lora_deltas(model)
    if tied := deltas.keys() - {name for name, _ in model.named_parameters()}:
        raise PostrlError(
            f"the adapter on {', '.join(sorted(tied))} cannot be merged for the sampler: the weight is the embedding, too",
            hint="leave lm_head out of --lora-target-modules, or untie the weights",
        )
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if "lora_" in name or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        plain = name.replace(".base_layer", "")
        tensor = whole(parameter.detach())
        if name in deltas:
            tensor = tensor + deltas[name]().to(tensor.dtype)
        yield plain, tensor


def _lora_deltas(model: Any) -> dict[str, Callable[[], Tensor]]:
    """Name of a base weight -> the product of its adapter's factors, scaled (LoRA, arXiv:2106.09685, eq. 3)."""
    deltas: dict[str, Callable[[], Tensor]] = {}
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A") or not len(module.lora_A):
            continue
        from peft.tuners.lora import Linear

        if not isinstance(module, Linear):
            raise PostrlError(
                f"the adapter on {name} is not a LoRA of a linear layer and cannot be merged for the sampler",
                hint="leave embeddings and convolutions out of --lora-target-modules",
            )

        def delta(module: Any = module) -> Tensor:
            a, b = whole(module.lora_A["default"].weight.detach()), whole(module.lora_B["default"].weight.detach())
            product: Tensor = (b.float() @ a.float()) * module.scaling["default"]
            return product.T if module.fan_in_fan_out else product

        deltas[f"{name}.base_layer.weight"] = delta
    return deltas


def merged_model(model: Any, adapter: Adapter) -> Any:
    """The model with an adapter merged in, whatever kind of adapter peft can merge."""
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    from postrl.learning.loading import on_adapter

    weights = load_peft_weights(str(adapter.folder), device="cpu")
    _resize(model, weights)
    config = PeftConfig.from_pretrained(str(adapter.folder))
    untie(model, weights, config)
    return on_adapter(model, adapter).merge_and_unload()


def _resize(model: Any, weights: dict[str, Any]) -> None:
    """Rows for the tokens that were added before the adapter was trained: it holds the embedding then."""
    ends = ("embed_tokens.weight", "lm_head.weight", "wte.weight")
    rows = [weight.shape[0] for name, weight in weights.items() if name.endswith(ends)]
    if rows and max(rows) != model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(max(rows), mean_resizing=False)


def untie(model: Any, names: Iterable[str], peft_config: Any) -> None:
    """Give the head weights of its own, where an adapter changes it or the embedding alone: merged into the weight that
    both share, it would change the other, too."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    if getattr(peft_config, "ensure_weight_tying", False):
        return
    layers = [name for name in names if "trainable_tokens" not in name]  # those peft keeps alike in both
    if {part for name in layers for part in name.split(".")} & TIED:
        head.weight = torch.nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False
