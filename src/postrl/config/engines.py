"""What a run's completions come from: engines as rows of a table. Code asks a row what it needs to know of an engine.

    engine_of(config).embedded      not: config.engine == "transformers"

A new engine is a row here and the sampler that it means (`postrl.session.SAMPLERS` of those inside the trainer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

EngineName = Literal["auto", "transformers", "vllm", "simulated"]
"""What --engine takes."""
HELP = (
    "What generates: transformers (inside the trainer) or vllm (servers); auto: vllm where it is installed. simulated: "
    "nothing, and nothing is trained; it shows how long a run would take (docs/planning.md)."
)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where completions come from, and what follows from it."""

    name: str
    samples: bool = True
    """Completions are sampled and scored in this run; False: they are stored ones of another."""
    servers: bool = False
    """vLLM servers sample, and a rollout worker beside the trainer asks them."""
    embedded: bool = False
    """It samples inside the one trainer process."""
    overlaps: bool = True
    """It may go on while the trainer trains (max_staleness above 0)."""
    narrows: bool = True
    """It tells which tokens top_p and top_k have left to draw from, without which no importance ratio is right."""
    trains: bool = True
    """There are a model and data; False: only time passes."""


AUTO = Engine(name="auto", servers=True)
"""Not decided yet: nothing is refused for it."""
REPLAY = Engine(name="replay", samples=False)
"""The stored rollouts of --replay, whatever --engine says."""
ENGINES = {
    row.name: row
    for row in (
        AUTO,
        Engine(name="transformers", embedded=True, overlaps=False),
        Engine(name="vllm", servers=True, narrows=False),
        REPLAY,
        Engine(name="simulated", narrows=False, trains=False),
    )
}


class Chosen(Protocol):
    """The settings that say which engine a run has."""

    engine: EngineName
    replay: str | None
    vllm_server_url: list[str]
    num_servers: int


def engine_of(config: Chosen) -> Engine:
    """The row of a run."""
    row = ENGINES[config.engine]
    return REPLAY if config.replay and row.trains else row


def servers_of(config: Chosen) -> int:
    """How many vLLM servers sample for a run, started by it or not."""
    return (len(config.vllm_server_url) or config.num_servers) if engine_of(config).servers else 0


def decided(config: Chosen, *, installed: bool) -> EngineName:
    """What `auto` means: vllm where it is `installed` or a server is named, else transformers. Another engine stays."""
    if ENGINES[config.engine] is not AUTO:
        return config.engine
    return "vllm" if installed or config.vllm_server_url else "transformers"
