"""`postrl grpo --engine transformers` from the shell: what it prints, what it leaves in the run folder."""

from __future__ import annotations

import json
import re

import pytest

from e2e.conftest import SIX_STEPS
from postrl.config import GRPOConfig
from postrl.run.metrics import meaning

COLUMNS = """
step split prompt_id group_id messages prompt completion completion_ids loss_mask logps version_spans
weight_version_first weight_version_last staleness finish_reason prompt_tokens completion_tokens reward
reward/letters status/letters reward_version/letters advantage dropped dataset_columns
"""


@pytest.fixture
def run(place, whole):
    assert whole.code == 0, whole.err
    return place.run("whole")


def rollouts(run, name):
    import pyarrow.parquet as pq

    return pq.read_table(run.path / "rollouts" / f"{name}.parquet").to_pylist()


# -- output ------------------------------------------------------------------------------------------------------------


def test_a_finished_run_exits_with_0_and_leaves_no_process(whole):
    assert (whole.code, whole.survivors) == (0, [])


def test_results_are_on_stdout_and_nothing_else(place, whole):
    lines = [line.rstrip() for line in whole.out.splitlines()]
    assert lines[0] == "tiny after 6 steps"
    assert lines[1].split() == ["before", "after"]
    number = r"-?\d+\.\d{3}"
    assert re.fullmatch(rf"reward on arithmetic \(evaluation\) +{number} +{number}", lines[2])
    assert re.fullmatch(rf"reward in training \(first step, last three\) +{number} +{number}", lines[3])
    assert lines[4:6] == ["run folder: whole", "next:"]
    assert all(line.startswith(f"  postrl grpo --config {place.folder}/whole/config.yaml ") for line in lines[6:8])
    assert lines[8].endswith(f" {place.folder}/whole/model    # serve the model")
    assert len(lines) == 9


def test_progress_is_on_stderr_a_line_a_step(whole):
    steps = re.findall(r"^step (\d)/6 · reward \d\.\d\d ±\d\.\d\d · loss .* s(?: \(.*\))?$", whole.err, re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5", "6"]
    assert "arithmetic: 80 prompts" in whole.err
    assert "Traceback" not in whole.err and "arning" not in whole.err


def test_piped_output_has_no_terminal_codes(whole):
    assert "\x1b" not in whole.out + whole.err


# -- the run folder ----------------------------------------------------------------------------------------------------


def test_every_metric_is_documented(run):
    names = {name for row in run.metrics() for name in row}
    assert [name for name in sorted(names) if meaning(name) is None] == []


def test_metrics_have_the_evaluation_before_the_first_step_and_then_a_line_a_step(run):
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert {name.rpartition("/")[0] for name in rows[0] if name != "step"} == {"eval/arithmetic"}
    assert [row["step"] for row in rows if "eval/arithmetic/reward" in row] == [0, 6]
    wanted = {"reward/mean", "policy/loss", "policy/entropy", "policy/grad_norm", "mismatch/kl", "time/step", "epoch"}
    assert all(wanted <= row.keys() for row in rows[1:])
    assert all(row["policy/grad_norm"] > 0 and row["policy/nonfinite"] == 0 for row in rows[1:])


def test_each_step_trains_on_rollouts_of_the_version_before_it(run):
    assert [row["weights/version"] for row in run.metrics()[1:]] == [0, 1, 2, 3, 4, 5]
    for step in range(1, 7):
        for row in rollouts(run, f"step_{step:06d}"):
            assert (row["step"], row["split"], row["staleness"]) == (step, "train", 0)
            assert (row["weight_version_first"], row["weight_version_last"]) == (step - 1, step - 1)
            assert row["version_spans"] == [{"version": step - 1, "start": 0, "end": row["completion_tokens"]}]


def test_rollouts_have_the_documented_columns(run):
    assert set(COLUMNS.split()) <= rollouts(run, "step_000001")[0].keys()


def test_rollouts_hold_what_was_sampled_and_how_it_was_scored(run):
    rows = rollouts(run, "step_000003")
    assert len(rows) == 8
    assert [row["group_id"] for row in rows] == [4, 4, 4, 4, 5, 5, 5, 5]
    for row in rows:
        length = row["completion_tokens"]
        assert 1 <= length <= 8
        assert len(row["completion_ids"]) == len(row["logps"]) == length
        assert row["loss_mask"] == [1] * length
        assert all(logp < 0 for logp in row["logps"])
        assert row["finish_reason"] in ("stop", "length")
        assert json.loads(row["messages"])[0]["role"] == "user"
        assert json.loads(row["dataset_columns"])["answer"].isdigit()
        expected = sum(token % 7 for token in row["completion_ids"]) / (7 * length)
        assert row["reward"] == row["reward/letters"] == pytest.approx(expected)
        assert (row["status/letters"], row["dropped"]) == ("scored", None)


def test_stored_advantages_are_centred_in_each_group(run):
    rows = rollouts(run, "step_000001")
    for group in (rows[:4], rows[4:]):
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-4)
        assert max(abs(row["advantage"]) for row in group) > 0.1


def test_evaluations_are_stored_too(run):
    before, after = rollouts(run, "eval_000000"), rollouts(run, "eval_000006")
    assert [row["prompt_id"] for row in before] == [row["prompt_id"] for row in after]
    assert len(before) == 4
    assert {row["split"] for row in before} == {"eval"}
    assert {row["weight_version_first"] for row in after} == {6}


def test_the_model_loads_with_transformers_and_has_moved(place, run):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = AutoModelForCausalLM.from_pretrained(run.path / "model")
    initial = AutoModelForCausalLM.from_pretrained(place.folder / "tiny")
    assert trained.dtype == torch.float32
    moved = [not torch.equal(a, b) for a, b in zip(trained.parameters(), initial.parameters(), strict=True)]
    assert all(moved)
    tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "1+1?"}], return_tensors="pt", return_dict=True)
    assert trained(**ids).logits.isfinite().all()


def test_each_child_has_a_log(run):
    assert {"trainer.log", "rewards.log"} <= {path.name for path in (run.path / "logs").iterdir()}


def test_a_hostile_accelerate_config_in_the_home_folder_is_not_read(place, run):
    import yaml

    theirs = yaml.safe_load((place.home / ".cache/huggingface/accelerate/default_config.yaml").read_text())
    ours = yaml.safe_load((run.path / "accelerate.yaml").read_text())
    assert (theirs["num_machines"], theirs["num_processes"]) == (4, 32)
    assert (ours["num_machines"], ours["num_processes"]) == (1, 1)


def test_the_stored_settings_are_the_resolved_ones_and_read_back_to_the_same(place, run):
    config = GRPOConfig.from_yaml(run.path / "config.yaml")
    assert (config.model, config.output_dir) == (str(place.folder / "tiny"), str(run.path))
    assert (config.engine, config.max_steps, config.learning_rate) == ("transformers", 6, 1e-2)
    config.save(run.path / "again.yaml")
    assert (run.path / "again.yaml").read_text() == (run.path / "config.yaml").read_text()
    (run.path / "again.yaml").unlink()


# -- what to do next ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def next_runs(place, whole, tmp_path_factory, side_by_side):
    """The printed commands that train, each for a copy of the folder and typed elsewhere: [(place, finished)]."""
    commands = [line.strip() for line in whole.out.splitlines() if line.startswith("  postrl ")]
    places = [place.copy(tmp_path_factory.mktemp("next") / "work") for _ in commands]

    def typed(there, line):
        return there.shell(f"cd / && {line.replace(str(place.folder), str(there.folder))}")

    return list(zip(places, side_by_side.map(typed, places, commands), strict=True))


@pytest.mark.slow
def test_the_first_next_command_trains_on_from_where_the_run_ended(next_runs):
    there, finished = next_runs[0]
    assert finished.code == 0, finished.err
    assert "continuing from step_000006: step 7 of 12" in finished.err
    assert there.run("whole").steps() == list(range(1, 13))
    assert finished.out.startswith("tiny after 12 steps")


@pytest.mark.slow
def test_the_second_next_command_starts_a_new_run_from_the_trained_model(place, next_runs):
    there, finished = next_runs[1]
    assert finished.code == 0, finished.err
    new = there.run("whole-2")
    assert new.steps() == [1, 2, 3, 4, 5, 6]
    old_last, new_first = place.run("whole").metrics()[-1], new.metrics()[0]
    assert new_first["eval/arithmetic/reward"] == old_last["eval/arithmetic/reward"]


# -- dry run, colour ---------------------------------------------------------------------------------------------------

PLAN = """\
run folder      new
model           tiny
data            arithmetic; evaluation on arithmetic:eval
reward          rewards.py:letters
engine          transformers, inside the trainer
trainer         1 rank on the CPU
steps           6
a step          2 prompts x 4 completions = 8 rollouts; 1 optimizer step of 8
a rollout       at most 1024 prompt and 8 completion tokens; forward passes of at most 1536 tokens
memory          1.5 MB of weights, gradients and optimizer in a rank; activations come on top
"""


def test_a_dry_run_prints_the_plan_and_makes_nothing(place):
    finished = place.postrl("grpo", *SIX_STEPS, "--output-dir", "new", "--dry-run")
    assert (finished.code, finished.out, finished.err) == (0, PLAN, "")
    assert not (place.folder / "new").exists()


def test_a_stored_config_is_a_config_file_and_flags_win(place, run):
    finished = place.postrl(
        "grpo", "--config", "whole/config.yaml", "--output-dir", "new", "--max-steps", "3", "--dry-run"
    )
    shown = finished.out.replace(f"{place.folder}/", "")  # a stored path is absolute
    assert (finished.code, shown) == (0, PLAN.replace("steps           6", "steps           3"))


def on_a_terminal(place, **env: str) -> str:
    """What `postrl grpo` without a model shows on a terminal."""
    import pty
    import subprocess
    import sys

    shown = []
    read, write = pty.openpty()
    import os

    with subprocess.Popen(
        [sys.executable, "-m", "postrl", "grpo"],
        cwd=place.folder,
        env={**place.env, "TERM": "xterm-256color", **env},
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=write,
    ):
        os.close(write)
        try:
            while data := os.read(read, 4096):
                shown.append(data)
        except OSError:  # Linux: the other end is closed
            pass
    os.close(read)
    return b"".join(shown).decode()


def test_errors_are_coloured_on_a_terminal(place):
    assert "\x1b[1;31merror: \x1b[0mno model is given" in on_a_terminal(place)


def test_no_color_is_respected(place):
    shown = on_a_terminal(place, NO_COLOR="1")
    assert "error: " in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", shown)
