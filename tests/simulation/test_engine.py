"""One simulated run: its folder, its lines. The command line is in tests/cli/test_plan.py."""

from __future__ import annotations

import pytest

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.launch.siblings import with_engine
from postrl.run.folder import RunFolder
from postrl.run.metrics import read_metrics
from postrl.simulation.engine import prepare, run_steps


def config(tmp_path, **changes) -> GRPOConfig:
    return GRPOConfig(
        **{"model": "x-1B", "engine": "simulated", "max_steps": 4, "prompts_per_step": 4, "num_generations": 2,
           "output_dir": str(tmp_path / "run"), **changes}
    )  # fmt: skip


def test_all_steps_count_and_are_written(tmp_path):
    simulation = prepare(config(tmp_path, max_staleness=1))
    report = run_steps(simulation)
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert report.seconds == pytest.approx(sum(row["time/step"] for row in rows))
    assert report.rollout_tokens == sum(row["tokens/completion"] for row in rows)
    assert folder.progress() == (4, 4)
    assert GRPOConfig.from_yaml(folder.config).engine == "simulated"


def test_the_split_is_that_of_the_settings(tmp_path):
    division = prepare(config(tmp_path, num_servers=3, simulation_arg=["gpus=8"])).division
    assert (division.servers, division.ranks) == (3, 5)
    with pytest.raises(UsageError, match="leave none of the 2 visible"):
        prepare(config(tmp_path, num_servers=3, simulation_arg=["gpus=2"]))


def test_nothing_is_made_where_an_assumption_is_wrong(tmp_path):
    with pytest.raises(UsageError, match="do not fit slots"):
        prepare(config(tmp_path, simulation_arg=["lone-tokens-per-s=9", "full-tokens-per-s=3"]))
    assert not (tmp_path / "run").exists()


def test_a_trainer_cannot_be_asked_to_simulate(tmp_path):
    with pytest.raises(UsageError, match="trains no model"):
        with_engine(config(tmp_path))
