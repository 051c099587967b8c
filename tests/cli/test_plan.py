"""`postrl plan` and `postrl grpo --engine simulated`, as a user's shell sees them."""

from __future__ import annotations

import json

SMALL = ("--prompts-per-step", "4", "--num-generations", "2", "--max-completion-length", "64")


def test_a_plan_is_the_dry_run(postrl, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    args = ("--model", "m", "--dataset", "arithmetic", "--output-dir", "run", "--engine", "transformers")
    plan, dry = postrl("plan", *args), postrl("grpo", *args, "--dry-run")
    assert (plan.returncode, plan.stdout, plan.stderr) == (0, dry.stdout, dry.stderr)
    assert "a step          32 prompts x 8 completions" in plan.stdout
    assert not (tmp_path / "run").exists()


def test_splits_are_compared_and_the_best_command_is_shown(postrl):
    shown = postrl("plan", "--model", "x-7B", *SMALL, "--simulate", "--gpus", "4", "--steps", "3")
    assert (shown.returncode, shown.stderr) == (0, "")
    assumed, table, legend, advice = shown.stdout.split("\n\n")
    assert "length_mean              32  a guess" in assumed
    assert "train_tokens_per_s     6250  a guess for 7B parameters on H100s" in assumed
    head, *rows = table.splitlines()
    assert head.split() == [
        "servers",
        "ranks",
        "GB/rank",
        "bound",
        "steps/h",
        "tok/s",
        "running",
        "idle",
        "stale",
        "bottleneck",
    ]
    assert len(rows) == 9 and legend.startswith("bound: max_staleness.")
    speeds = [float(row.split()[4]) for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    command = advice.splitlines()[1]
    assert command.startswith(
        "  postrl grpo --model x-7B --prompts-per-step 4 --num-generations 2 --max-completion-length 64"
    )
    assert "--num-servers" in command and "--num-processes" in command


def test_what_is_given_is_assumed(postrl):
    args = ("--simulation-arg", "length-quantiles=5:10:20", "--simulation-arg", "slots=8", "--steps", "2")
    shown = postrl("plan", *SMALL, "--simulate", "--gpus", "2", *args).stdout
    assert "length_quantiles      5:10:20  given" in shown
    assert "length_mean" not in shown


def test_a_simulated_run_leaves_its_metrics_and_no_model(postrl, tmp_path):
    args = (
        "grpo",
        "--engine",
        "simulated",
        "--model",
        "x-1B",
        *SMALL,
        "--max-steps",
        "3",
        "--async",
        "--output-dir",
        "run",
    )
    shown = postrl(*args)
    assert shown.returncode == 0, shown.stderr
    assert "no model, no data, simulated seconds" in shown.stderr
    assert "step 3/3 · length" in shown.stderr
    assert "3 simulated steps" in shown.stdout and "run folder: run" in shown.stdout
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[2]["rollout/staleness_max"] == 1.0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "logs", "metrics.jsonl"]
    again = postrl(*args)
    assert again.returncode == 2 and "the folder run is not empty" in again.stderr


def test_a_dry_simulated_run_shows_what_is_assumed(postrl, tmp_path):
    shown = postrl("grpo", "--engine", "simulated", "--max-steps", "3", "--output-dir", "run", "--dry-run")
    assert shown.returncode == 0 and "push_seconds" in shown.stdout
    assert not (tmp_path / "run").exists()


def test_what_makes_no_sense_is_refused(postrl):
    simulated = ("grpo", "--engine", "simulated", "--output-dir", "run")
    for args, says in (
        ((*simulated,), "num_train_epochs says nothing about the number of its steps"),
        ((*simulated, "--max-steps", "3", "--push-to-hub", "me/mine"), "push_to_hub is me/mine"),
        ((*simulated, "--max-steps", "3", "--simulation-arg", "speed=3"), "simulation_arg names 'speed'"),
        ((*simulated, "--max-steps", "3", "--simulation-arg", "speed"), "write it as KEY=VALUE"),
        (("grpo", "--model", "m", "--dataset", "arithmetic", "--simulation-arg", "slots=3"), "simulates nothing"),
        (("plan", "--model", "m", "--dataset", "arithmetic", "--gpus", "4"), "add --simulate"),
        (("plan", "--simulate", "--engine", "transformers"), "use --engine vllm"),
        (("plan", "--simulate", "--gpus", "2", "--tensor-parallel-size", "2"), "2 GPUs are not enough"),
        (("plan", "--simulate", "--from", "nowhere"), "cannot read the config file nowhere/config.yaml"),
    ):
        shown = postrl(*args)
        assert (shown.returncode, shown.stdout) == (2, ""), args
        assert says in shown.stderr, shown.stderr
