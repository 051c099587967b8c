"""A number of GPUs divided between servers and trainer ranks in every way, each way simulated, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.simulation.assumptions import Assumptions
from postrl.simulation.loop import Division, Report, simulate

MOST_DIVISIONS = 12
ROLLOUTS = 2500
"""Completions of one simulation, about: as many steps as that makes, within LEAST_STEPS and MOST_STEPS."""
LEAST_STEPS, MOST_STEPS = 8, 40
ALIKE = 0.02
"""Share of the fastest within which a way of running is as good, and the one with less staleness is better."""
STALENESS = (0, 1, 2)


def divisions(gpus: int, tensor_parallel_size: int) -> list[Division]:
    """Every division with a server and a rank at least; evenly spread ones where there are more than MOST_DIVISIONS.

    Raises:
        UsageError: there is none.
    """
    most = (gpus - 1) // tensor_parallel_size
    if most < 1:
        raise UsageError(
            f"{gpus} GPUs are not enough for a server of tensor_parallel_size = {tensor_parallel_size} and a trainer rank",
            hint=f"give --gpus {tensor_parallel_size + 1} or more, or lower --tensor-parallel-size",
        )
    number = min(most, MOST_DIVISIONS)
    servers = {1 + round(i * (most - 1) / max(1, number - 1)) for i in range(number)}
    return [Division(n, gpus - n * tensor_parallel_size) for n in sorted(servers)]


def compare(
    config: GRPOConfig,
    assumed: Assumptions,
    ways: Sequence[Division],
    *,
    steps: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Report]:
    """Simulate each division under max_staleness 0, 1, 2 (and the config's own), the fastest first; `done` after each.

    Raises:
        UsageError: the assumptions contradict each other.
    """
    steps = steps or max(LEAST_STEPS, min(MOST_STEPS, ROLLOUTS // config.rollouts_per_step))
    reports = []
    for division in ways:
        for bound in staleness_of(config):
            reports.append(simulate(replace(config, max_staleness=bound), assumed, division, steps=steps))
            done()
    return sorted(reports, key=lambda r: (-r.steps_per_hour, r.config.max_staleness, r.division.servers))


def staleness_of(config: GRPOConfig) -> list[int]:
    return sorted({*STALENESS, config.max_staleness})


def best(reports: Sequence[Report]) -> Report:
    """Of those as fast as the fastest, but for ALIKE, the one with the least staleness. The fastest comes first."""
    alike = [r for r in reports if r.steps_per_hour >= (1 - ALIKE) * reports[0].steps_per_hour]
    return min(alike, key=lambda r: (r.config.max_staleness, -r.steps_per_hour))
