"""What a finished run tells a simulation. The run is a simulated one, whose speeds are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from postrl.config import GRPOConfig
from postrl.errors import DataError, UsageError
from postrl.rollout.store import write_rollouts
from postrl.run.metrics import MetricsWriter
from postrl.simulation.assumptions import CPU, Assumptions, guessed
from postrl.simulation.calibrate import assume, generation_seconds, measured
from postrl.simulation.loop import Division, simulate
from postrl.types import Group, Rollout, VersionSpan

TRUE = Assumptions(
    length_mean=60.0, length_sigma=0.5, prompt_tokens=40.0, slots=64.0, lone_tokens_per_s=20.0, full_tokens_per_s=300.0,
    prefill_tokens_per_s=2000.0, train_tokens_per_s=250.0, rank_efficiency=0.9, push_seconds=1.5, other_seconds=0.7,
)  # fmt: skip


def config(**changes) -> GRPOConfig:
    return GRPOConfig(
        **{"model": "smollm2-135m", "engine": "vllm", "prompts_per_step": 4, "num_generations": 4, "max_completion_length": 200,
           "max_prompt_length": 64, **changes}
    )  # fmt: skip


ONE_EACH = Division(1, 1)


def finished_run(folder: Path, settings: GRPOConfig, division: Division = ONE_EACH, truth: Assumptions = TRUE) -> str:
    """A run's folder with settings, metrics and rollouts."""
    (folder / "rollouts").mkdir(parents=True)
    settings.save(folder / "config.yaml")
    (folder / "accelerate.yaml").write_text(f"num_processes: {division.ranks}\n")
    writer = MetricsWriter(folder / "metrics.jsonl")
    simulate(settings, truth, division, steps=8, whole=True, on_step=lambda step, row: writer.write(step, row))
    lengths = [min(200, round(truth.lengths().draw(i))) for i in range(160)]
    for step in (1, 2):
        write_rollouts(folder / "rollouts", step, "train", [_group(i, n) for i, n in enumerate(lengths[step - 1 :: 2])])
    return str(folder)


def _group(index: int, length: int) -> Group:
    rollout = Rollout("rows:0", 0, [1] * 40, [5] * length, [0.0] * length, [VersionSpan(0, 0, length)], "stop")
    return Group("rows:0", index, "p", None, {}, [rollout])


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_run_tells_its_speeds_and_durations(tmp_path, max_staleness):
    settings = config(max_staleness=max_staleness)
    run = finished_run(tmp_path / "run", settings, Division(1, 2))
    got = measured(run, guessed(settings, CPU))
    assert got.train_tokens_per_s == pytest.approx(TRUE.train_tokens_per_s, rel=0.01)
    assert got.push_seconds == pytest.approx(1.5)
    assert got.other_seconds == pytest.approx(0.7)
    assert got.prompt_tokens == 40
    assert len(got.length_quantiles) == 160 and list(got.length_quantiles) == sorted(got.length_quantiles)
    assert set(got.sources.values()) > {run, f"{run}, the curve guessed"}


def test_the_speed_of_a_server_is_such_that_the_run_generates_as_long_as_it_did(tmp_path):
    settings = config()
    run = finished_run(tmp_path / "run", settings)
    got = measured(run, guessed(settings, CPU))
    division = Division(1, 1)
    assert generation_seconds(settings, got, division) == pytest.approx(
        generation_seconds(settings, TRUE, division), rel=0.1
    )
    wanted = simulate(settings, TRUE, division, steps=10).steps_per_hour
    assert simulate(settings, got, division, steps=10).steps_per_hour == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_seconds_in_which_the_servers_stood_still_do_not_make_them_slow(tmp_path, max_staleness):
    settings = config(max_staleness=max_staleness)
    run = finished_run(tmp_path / "run", settings, truth=replace(TRUE, train_tokens_per_s=10.0))
    got, guess = measured(run, guessed(settings, CPU)).speed(), TRUE.speed()
    assert got.step(12) == pytest.approx(guess.step(12), rel=0.2)  # about as many as run at a time


def test_what_is_given_beats_the_run_and_the_run_beats_the_guess(tmp_path):
    run = finished_run(tmp_path / "run", config())
    assumed, placement = assume(config(simulation_arg=[f"from={run}", "push-seconds=9", "gpus=4"]))
    assert (assumed.push_seconds, assumed.sources["push_seconds"]) == (9.0, "given")
    assert assumed.sources["train_tokens_per_s"] == run
    assert (len(placement.server_devices), placement.num_processes) == (1, 3)


def test_a_given_length_replaces_the_lengths_of_the_run(tmp_path):
    run = finished_run(tmp_path / "run", config())
    assumed, _ = assume(config(simulation_arg=[f"from={run}", "length-mean=500", "length-sigma=0"]))
    assert assumed.lengths().draw(0) == 500


def test_one_speed_of_a_server_that_is_given_takes_the_other_with_it():
    guess, _ = assume(config(simulation_arg=["gpus=2"]))
    assumed, _ = assume(config(simulation_arg=["gpus=2", "full-tokens-per-s=900"]))
    ratio = guess.full_tokens_per_s / guess.lone_tokens_per_s
    assert assumed.lone_tokens_per_s == pytest.approx(900 / ratio)
    assert assumed.sources["lone_tokens_per_s"] == "follows full_tokens_per_s"


def test_other_slots_are_on_the_same_curve():
    guess, _ = assume(config(simulation_arg=["gpus=2"]))
    assumed, _ = assume(config(simulation_arg=["gpus=2", "slots=16"]))
    assert assumed.speed().base == pytest.approx(guess.speed().base)
    assert assumed.speed().per_sequence == pytest.approx(guess.speed().per_sequence)


def test_a_folder_that_is_no_finished_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read the config file"):
        measured(tmp_path, TRUE)
    config().save(tmp_path / "config.yaml")
    MetricsWriter(tmp_path / "metrics.jsonl").write(0, {"eval/rows/reward": 0.5})
    with pytest.raises(DataError, match="has no step with times"):
        measured(tmp_path, TRUE)
    MetricsWriter(tmp_path / "metrics.jsonl").write(1, {"time/update": 1.0, "time/step": 2.0})
    with pytest.raises(DataError, match="generated nothing"):
        measured(tmp_path, TRUE)
    MetricsWriter(tmp_path / "metrics.jsonl").write(2, {"time/update": 1.0, "time/step": 2.0, "time/generate": 1.0})
    with pytest.raises(DataError, match="rollouts holds 0 completions"):
        measured(tmp_path, TRUE)
    with pytest.raises(UsageError, match="gpus is 'many'"):
        assume(config(simulation_arg=["gpus=many"]))
