"""What a simulation assumes, read from a finished run: lengths, speeds and durations of its latest steps.

The speed of a server is a curve, and a run gives one point of it. The guessed curve keeps its shape and is stretched until
the simulated run spends as long on generation as the real one did.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from postrl.config import GRPOConfig
from postrl.config.engines import engine_of
from postrl.config.values import read_yaml
from postrl.errors import DataError, UsageError
from postrl.launch.model import with_adapter
from postrl.launch.placement import Placement, place, visible_gpus
from postrl.run.folder import RunFolder
from postrl.run.metrics import read_metrics
from postrl.simulation.assumptions import CPU, GPU, Assumptions, given, guessed, parse
from postrl.simulation.loop import Division, simulate

RECENT = 20
"""Steps that are read, the latest ones; the first of a run is left out, where there are others: it warms up."""
ROLLOUTS = 1500
"""Completions of a simulation to calibrate with, about; within 8 to 40 steps."""
ROUNDS = 3
"""Simulations to find the speed of a server with."""
SPEEDS = ("lone_tokens_per_s", "full_tokens_per_s", "prefill_tokens_per_s")


def assume(config: GRPOConfig) -> tuple[Assumptions, Placement]:
    """The assumptions of a run, and the devices it has: what `simulation_arg` gives, else what the run that it names
    measured, else a guess.

    Raises:
        UsageError: an unknown name or a wrong value, or the devices do not suffice.
        DataError: the run has no metrics or rollouts to read.
    """
    args = parse(config.simulation_arg)
    values = given(args)
    config = with_adapter(config) if config.adapter or Path(config.model).is_dir() else config
    placement = placed(config, args.get("gpus"))
    machine = CPU if placement.cpu else GPU
    assumed = guessed(config, machine)
    if run := args.get("from"):
        assumed = measured(run, assumed)
    return _with_given(assumed, values), placement


def placed(config: GRPOConfig, gpus: str | None = None) -> Placement:
    """Where the processes would go on a machine with `gpus` GPUs; None: this one."""
    if gpus is not None and not gpus.isdecimal():
        raise UsageError(f"gpus is {gpus!r}, expected a number", hint="such as --simulation-arg gpus=8")
    return place(
        visible_gpus() if gpus is None else int(gpus),
        engine="vllm",
        num_servers=len(config.vllm_server_url) or config.num_servers,
        tensor_parallel_size=config.tensor_parallel_size,
        num_processes=config.num_processes,
    )


def division_of(placement: Placement) -> Division:
    """Its servers and ranks."""
    return Division(len(placement.server_devices), placement.num_processes)


def _with_given(assumed: Assumptions, values: dict[str, Any]) -> Assumptions:
    """Of the two speeds of a server, the one that is not given follows the other; so does the full one more slots."""
    speeds = SPEEDS[:2]
    if "slots" in values and "full_tokens_per_s" not in values:
        speed, slots = assumed.speed(), values["slots"]
        assumed = replace(assumed, full_tokens_per_s=slots / speed.step(slots))
    for name, other in (speeds, speeds[::-1]):
        if name in values and other not in values:
            scale = values[name] / getattr(assumed, name)
            assumed = assumed.having({other: getattr(assumed, other) * scale}, f"follows {name}")
    if "length_mean" in values or "length_sigma" in values:
        assumed = replace(assumed, length_quantiles=())
    return assumed.having(values, "given")


# -- a finished run ----------------------------------------------------------------------------------------------------


def measured(run: str | Path, guess: Assumptions) -> Assumptions:
    """`guess` with everything that the run in this folder tells.

    Raises:
        DataError: it has no steps with times, generated nothing, or has no stored rollouts.
        UsageError: it has no settings.
    """
    folder = RunFolder(run)
    config = GRPOConfig.from_yaml(folder.config)
    rows = [row for row in read_metrics(folder.metrics) if row["step"] > 0 and row.get("time/update")]
    if not rows:
        raise DataError(f"{folder.metrics} has no step with times", hint="give the folder of a run that trained")
    if not engine_of(config).samples or not sum(row.get("time/generate") or 0.0 for row in rows):
        raise DataError(f"{folder.path} generated nothing", hint="give the folder of a run without --replay")
    rows = (rows[1:] or rows)[-RECENT:]
    division = Division(len(config.vllm_server_url) or config.num_servers, _ranks(folder, config))
    values = {**_lengths(folder), **_durations(rows, config)}
    assumed = guess.having(values, str(run))
    speed = _train_speed(rows, config) / (1 + assumed.rank_efficiency * (division.ranks - 1))
    return _stretched(assumed.having({"train_tokens_per_s": speed}, str(run)), rows, config, division, str(run))


def _lengths(folder: RunFolder) -> dict[str, Any]:
    """Sorted lengths of the completions of the latest steps, dropped ones too, and the prompts' mean."""
    import pyarrow.parquet as pq

    files = sorted(folder.rollouts.glob("step_*.parquet"))[-RECENT:]
    tables = [pq.read_table(file, columns=["completion_tokens", "prompt_tokens"]) for file in files]
    lengths = sorted(n for table in tables for n in table["completion_tokens"].to_pylist() if n)
    prompts = [n for table in tables for n in table["prompt_tokens"].to_pylist()]
    if len(lengths) < 2:
        raise DataError(
            f"{folder.rollouts} holds {len(lengths)} completions", hint="give the folder of a run that trained"
        )
    return {"length_quantiles": tuple(map(float, lengths)), "endless": 0.0, "prompt_tokens": statistics.fmean(prompts)}


def _durations(rows: Sequence[dict[str, Any]], config: GRPOConfig) -> dict[str, float]:
    values = {"reward_seconds": statistics.median(_slowest_reward(row) for row in rows)}
    if not engine_of(config).embedded:  # whose sync is not one
        values["push_seconds"] = statistics.median(row.get("time/sync") or 0.0 for row in rows)
    values["other_seconds"] = statistics.median(max(0.0, _other(row)) for row in rows)
    return values


def _slowest_reward(row: dict[str, Any]) -> float:
    return max([v for name, v in row.items() if name.endswith("/latency_p99") and v is not None], default=0.0)


def _other(row: dict[str, Any]) -> float:
    return float(
        row["time/step"] - sum(row.get(f"time/{name}") or 0.0 for name in ("generate", "assess", "update", "sync"))
    )


def _train_speed(rows: Sequence[dict[str, Any]], config: GRPOConfig) -> float:
    """Tokens of a step over the seconds of its update, idle groups and all; a group's prompt counts once."""
    tokens = sum(row["tokens/completion"] + row["tokens/prompt"] / config.num_generations for row in rows)
    return float(config.num_iterations * tokens / sum(row["time/update"] for row in rows))


def _ranks(folder: RunFolder, config: GRPOConfig) -> int:
    file = folder.path / "accelerate.yaml"
    return int(read_yaml(file).get("num_processes") or 1) if file.exists() else config.num_processes or 1


def _generation(rows: Sequence[Mapping[str, Any]]) -> float:
    """Mean seconds of a step in which the samplers worked. `time/samplers_idle` is of the time since the batch before:
    the rest of that step, and the wait for this batch."""
    if any(row.get("time/samplers_idle") is None for row in rows):
        return statistics.fmean(row["time/generate"] for row in rows)
    before = rows[:-1] or rows
    since = [b["time/step"] - b["time/generate"] + row["time/generate"] for b, row in zip(before, rows[-len(before) :])]
    return statistics.fmean(s - row["time/samplers_idle"] for s, row in zip(since, rows[-len(before) :]))


def _stretched(
    assumed: Assumptions, rows: Sequence[dict[str, Any]], config: GRPOConfig, division: Division, run: str
) -> Assumptions:
    """With the speed of a server at which the run, simulated, generates as long as it did."""
    n = config.max_staleness  # at both ends of a run the samplers are ahead of the trainer, or have nothing left to do
    wanted = _generation(rows[n : len(rows) - n] if len(rows) >= 2 * n + 2 else rows)
    for _ in range(ROUNDS):
        scale = generation_seconds(config, assumed, division) / wanted
        values = {name: getattr(assumed, name) * scale for name in SPEEDS}
        assumed = assumed.having(values, f"{run}, the curve guessed")
    return assumed


def generation_seconds(config: GRPOConfig, assumed: Assumptions, division: Division) -> float:
    """Mean seconds of a simulated step in which the samplers worked."""
    steps = max(8, min(40, ROLLOUTS // config.rollouts_per_step))
    rows: list[Mapping[str, float]] = []
    simulate(config, assumed, division, steps=steps, on_step=lambda step, row: rows.append(row))
    return _generation(rows[config.max_staleness :])  # with the last one that fills the pipeline, for `since`
