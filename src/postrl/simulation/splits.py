"""A number of GPUs divided between servers and trainer ranks in every way, each way simulated, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from postrl.config import GRPOConfig
from postrl.errors import RolloutError, UsageError
from postrl.simulation.assumptions import Assumptions
from postrl.simulation.loop import Report, Split, simulate

MOST_SPLITS = 12
ROLLOUTS = 2500
"""Completions of one simulation, about: as many steps as that makes, within LEAST_STEPS and MOST_STEPS."""
LEAST_STEPS, MOST_STEPS = 8, 40
ALIKE = 0.02
"""Share of the fastest within which a way of running is as good, and the one with less staleness is better."""
STALENESS = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """One way of running."""

    split: Split
    max_staleness: int
    report: Report | None
    problem: str = ""
    """Why there is no report."""

    @property
    def speed(self) -> float:
        return self.report.steps_per_hour if self.report else 0.0


def divisions(gpus: int, tensor_parallel_size: int) -> list[Split]:
    """Every division with a server and a rank at least; evenly spread ones where there are more than MOST_SPLITS.

    Raises:
        UsageError: there is none.
    """
    most = (gpus - 1) // tensor_parallel_size
    if most < 1:
        raise UsageError(
            f"{gpus} GPUs are not enough for a server of tensor_parallel_size = {tensor_parallel_size} and a trainer rank",
            hint=f"give --gpus {tensor_parallel_size + 1} or more, or lower --tensor-parallel-size",
        )
    number = min(most, MOST_SPLITS)
    servers = {1 + round(i * (most - 1) / max(1, number - 1)) for i in range(number)}
    return [Split(n, gpus - n * tensor_parallel_size) for n in sorted(servers)]


def compare(
    config: GRPOConfig,
    assumed: Assumptions,
    ways: Sequence[Split],
    *,
    steps: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Simulate each split under max_staleness 0, 1, 2 (and the config's own), the fastest first; `done` after each.

    Raises:
        UsageError: the assumptions contradict each other.
    """
    steps = steps or max(LEAST_STEPS, min(MOST_STEPS, ROLLOUTS // config.rollouts_per_step))
    rows = []
    for split in ways:
        for bound in staleness_of(config):
            rows.append(_row(replace(config, max_staleness=bound), assumed, split, steps))
            done()
    return sorted(rows, key=lambda row: (-row.speed, row.max_staleness, row.split.servers))


def staleness_of(config: GRPOConfig) -> list[int]:
    return sorted({*STALENESS, config.max_staleness})


def _row(config: GRPOConfig, assumed: Assumptions, split: Split, steps: int) -> Row:
    try:
        return Row(split, config.max_staleness, simulate(config, assumed, split, steps=steps))
    except RolloutError as error:
        return Row(split, config.max_staleness, None, error.message)


def best(rows: Sequence[Row]) -> Row:
    """Of those as fast as the fastest, but for ALIKE, the one with the least staleness."""
    alike = [row for row in rows if row.speed >= (1 - ALIKE) * rows[0].speed]
    return min(alike, key=lambda row: (row.max_staleness, -row.speed))
