"""Whether the LoRA adapter of a run goes to its servers by name, and what they are started with for that. No torch.

    plan = adapter_plan(config, model_path, cpu=placement.cpu)
    plan.rank       # above 0: --enable-lora; 0: all weights are pushed, adapters merged
    plan.reason     # why merged, where nobody asked for it

The launcher decides before anything starts: servers for adapters are started otherwise, and requests name adapters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.errors import PostrlError, UsageError
from postrl.models.adapter import adapter_named
from postrl.models.folder import cached_snapshot
from postrl.models.weights import tensor_names
from postrl.servers.attach import adapter_problems
from postrl.servers.client import VLLMServer

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for --max-lora-rank."""
VLLM_LORA_RANK = 16
"""Its default for that."""
PROJECTIONS = frozenset(
    ["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj"]
)
"""Linear layers that have the same names in vLLM, where it may pack them, as in transformers."""
HEADS = frozenset(["lm_head", "embed_out", "embed_tokens", "embed_in", "wte", "wpe"])
"""Embeddings and output layers, which vLLM adapts in few models."""
NOT_IN_VLLM = ("alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
"""Fields of peft.LoraConfig that vLLM refuses."""
PLAIN_STARTS = ("gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the model's own weights as they are."""
NO_LORA = "does not support LoRA"
"""What vLLM says of a model class without LoRA, when it starts."""


@dataclass(frozen=True)
class AdapterPlan:
    """How LoRA reaches the servers of a run."""

    rank: int = 0
    """Of the adapters that they hold by name; 0: all weights are pushed."""
    targets: tuple[str, ...] = ()
    """Modules that they make room for; empty: all they can. Without it vLLM wraps the LM head, too: that costs a row of
    the vocabulary for each token and adapter, and on CPUs the engine dies when log-probs of a prompt are asked for (as
    the canary does) while other requests run."""
    reason: str = ""
    """Why the adapter is merged instead, if nobody asked for that."""

    @property
    def max_lora_rank(self) -> int:
        return max_lora_rank(self.rank)

    def note(self) -> str:
        return f"the LoRA adapter is merged into all weights for each push: {self.reason}" if self.reason else ""


FULL = AdapterPlan()


def max_lora_rank(rank: int) -> int:
    """The --max-lora-rank with room for adapters of this rank."""
    return next(able for able in RANKS if able >= rank)


def adapter_plan(config: GRPOConfig, model: str, *, cpu: bool, peft_config: Any = None) -> AdapterPlan:
    """What `weight_sync` means for this run.

    Args:
        model: local folder or hub id.
        cpu: whether the servers run on CPUs.
        peft_config: a script's peft.LoraConfig, in place of the --lora settings.

    Raises:
        UsageError: weight_sync lora or merge without an adapter, or lora for one that vLLM does not take.
    """
    if not engine_of(config).servers:
        return FULL
    if peft_config is None and config.adapter:
        peft_config = SimpleNamespace(**adapter_named(config.adapter).settings)
    rank = _rank(config, peft_config)
    if config.weight_sync in ("lora", "merge") and not rank:
        raise UsageError(
            f"weight_sync = {config.weight_sync} is for LoRA adapters, and lora_rank = 0 trains all weights",
            hint="set --lora-rank, or use --weight-sync full",
        )
    if config.weight_sync in ("full", "merge") or not rank:
        return FULL
    wanted = getattr(peft_config, "target_modules", None) or config.lora_target_modules
    targets = _targets(wanted, model, config.revision, cpu)
    reason = unfit(wanted, peft_config, rank)
    if targets is None and not reason:
        reason = "on CPUs vLLM serves adapters of the usual projections (q_proj, gate_proj, ...) only"
    if reason and config.weight_sync == "lora":
        raise UsageError(f"weight_sync = lora, and {reason}", hint="use --weight-sync merge")
    return AdapterPlan(reason=reason) if reason else AdapterPlan(rank, targets or ())


def for_running(plan: AdapterPlan, config: GRPOConfig, servers: Sequence[VLLMServer]) -> AdapterPlan:
    """The plan with servers that run already: merged, unless lora was asked for, where one of them takes no adapters.

    Servers that do not answer are left to the check of attaching, which lists all that is wrong with them.
    """
    if not plan.rank or config.weight_sync == "lora":
        return plan
    for server in servers:
        try:
            problems = adapter_problems(server, rank=plan.rank, number=config.max_loras)
        except PostrlError:
            continue
        if problems:
            return AdapterPlan(reason=f"of {server.url}, {problems[0]}")
    return plan


def without_lora(plan: AdapterPlan, config: GRPOConfig, error: PostrlError) -> AdapterPlan | None:
    """The plan after servers failed to start: merged where that is because of LoRA; None: it is for another reason."""
    if plan.rank and config.weight_sync != "lora" and NO_LORA in error.message:
        return AdapterPlan(reason="vLLM has no LoRA for this model")
    return None


def _rank(config: GRPOConfig, peft_config: Any) -> int:
    """The largest of the adapter; 0: there is none."""
    if peft_config is None:
        return config.lora_rank
    patterns: dict[str, int] = getattr(peft_config, "rank_pattern", None) or {}
    return max(int(getattr(peft_config, "r", 0) or 0), *patterns.values(), 0)


def unfit(wanted: Collection[str] | str, peft_config: Any, rank: int) -> str:
    """Why vLLM cannot take the adapter as it is; empty: it can."""
    heads = sorted(head for head in HEADS if _adapts(wanted, head))
    used = [name for name in NOT_IN_VLLM if getattr(peft_config, name, None)]
    if getattr(peft_config, "bias", "none") != "none":
        used.append("bias")
    start = getattr(peft_config, "init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        used.append(f"init_lora_weights = {start}")
    if rank > RANKS[-1]:
        return f"vLLM takes adapters up to rank {RANKS[-1]}, and this one has {rank}"
    if heads:
        return f"it adapts {', '.join(heads)}, which vLLM serves for few models"
    return f"peft_config sets {', '.join(used)}, which vLLM does not take in an adapter" if used else ""


def _adapts(wanted: Collection[str] | str, name: str) -> bool:
    """Whether a target_modules (names, the ends of names, or one regular expression) means the module of that name."""
    if isinstance(wanted, str):
        return any(re.fullmatch(wanted, path) for path in (name, f"model.{name}"))
    return name in {target.rpartition(".")[2] for target in wanted}


def _targets(wanted: Collection[str] | str, model: str, revision: str | None, cpu: bool) -> tuple[str, ...] | None:
    """Modules that a server is to make room for; empty: all; None: it cannot be told, and must be on CPUs."""
    if isinstance(wanted, str) or "all-linear" in wanted:
        names = {name for name in _modules(model, revision) if name not in HEADS and "norm" not in name}
    else:
        names = {target.rpartition(".")[2] for target in wanted}
    if not names and cpu:  # a hub id that is not here yet
        return tuple(sorted(PROJECTIONS))
    if names <= PROJECTIONS:
        return tuple(sorted(names))
    return None if cpu else ()


def _modules(model: str, revision: str | None) -> set[str]:
    """Last parts of the names of a model's modules that have weights; empty where its files are not here."""
    folder = Path(model) if Path(model).is_dir() else cached_snapshot(model, revision)
    names = tensor_names(folder) if folder else []
    return {name.removesuffix(".weight").rpartition(".")[2] for name in names if name.endswith(".weight")}
