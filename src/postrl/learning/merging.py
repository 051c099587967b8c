"""The weights of a model as others load them: whole, under transformers' own names, LoRA adapters merged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from postrl.errors import PostrlError
from postrl.learning.sharding import whole


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
