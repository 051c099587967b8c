"""Scripts written for TRL's GRPOTrainer run after changing the import: see the files in scripts/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e.runs import Command

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def scripts(place, side_by_side):
    """All scripts, each as a process: name -> future."""
    names = ("plain", "conversations", "lora", "recipe", "notebook")
    return {name: side_by_side.submit(place.script, SCRIPTS / f"{name}.py", "tiny", f"by-{name}") for name in names}


@pytest.fixture
def script(scripts):
    def finished(name):
        found = scripts[name].result()
        assert (found.code, found.survivors) == (0, []), found.err
        return found

    return finished


def rollouts(run, step):
    import pyarrow.parquet as pq

    return pq.read_table(run.path / "rollouts" / f"step_{step:06d}.parquet").to_pylist()


# -- plain.py ----------------------------------------------------------------------------------------------------------


def test_trls_batch_names_are_converted_and_said_once(script):
    said = script("plain").err
    assert said.count("TRL's names (docs/from_trl.md):") == 1
    assert "per_device_train_batch_size=4, gradient_accumulation_steps=2 -> prompts_per_step=2, minibatches=1" in said


def test_text_prompts_are_given_to_the_model_and_the_reward_as_text(place, script):
    script("plain")
    for row in rollouts(place.run("by-plain"), 1):
        assert row["messages"] is None
        assert row["prompt"].startswith("Write ") and row["prompt"].endswith(" words about the sea.")
        assert row["reward/reward_len"] == pytest.approx(-abs(12 - len(row["completion"])) / 12)


def test_a_script_shows_its_steps(script):
    lines = script("plain").err.splitlines()
    assert [line.partition(" · ")[0] for line in lines if line.startswith("step ")] == ["step 1/2", "step 2/2"]


def test_a_script_says_where_it_writes_what_it_learned_and_how_it_goes_on(place, script):
    lines = [line.rstrip() for line in script("plain").err.splitlines()]
    assert "run folder: by-plain (logs in by-plain/logs)" in lines
    ended = lines[lines.index("tiny after 2 steps") :]
    assert ended[1].split() == ["before", "after"]
    assert ended[2].startswith("reward in training (first step, last three)")
    assert ended[3:5] == ["run folder: by-plain", "next:"]
    assert ended[5].split("    # ")[0] == "  trainer.train(resume_from_checkpoint=True)"
    assert ended[6].split("    # ")[0] == f"  GRPOTrainer(model='{place.folder}/by-plain/model', ...)"


def test_the_output_of_a_script_is_its_own(script):
    assert script("plain").out == ""


def test_the_model_is_saved_where_the_script_says_too(place, script):
    from transformers import AutoModelForCausalLM

    script("plain")
    run = place.run("by-plain")
    model = AutoModelForCausalLM.from_pretrained(run.path / "final")
    weights = run.weights()
    assert all((parameter == weights[name]).all() for name, parameter in model.named_parameters())


# -- conversations.py --------------------------------------------------------------------------------------------------


def test_conversations_and_columns_reach_the_reward(place, script):
    script("conversations")
    for row in rollouts(place.run("by-conversations"), 1):
        assert "<answer></answer>" in row["messages"] and "What is" in row["messages"]
        assert "solution" in row["dataset_columns"]
        assert row["status/accuracy_reward"] == "scored"


def test_an_epoch_over_six_prompts_by_two_takes_three_steps(place, script):
    script("conversations")
    assert place.run("by-conversations").steps() == [1, 2, 3]


def test_evaluation_before_and_after_training_sees_the_weights_of_that_time(place, script):
    out = dict(line.split() for line in script("conversations").out.splitlines())
    rows = place.run("by-conversations").metrics()
    evaluated = {row["step"]: row["eval/eval/reward"] for row in rows if "eval/eval/reward" in row}
    assert list(evaluated) == [0, 2, 3]
    assert float(out["before"]) == evaluated[0]
    assert float(out["after"]) == evaluated[3]
    assert out["before"] != out["after"]


def test_a_module_is_trained_with_a_kl_to_what_it_was(place, script):
    script("conversations")
    rows = [row for row in place.run("by-conversations").metrics() if row["step"] > 0]
    assert rows[0]["policy/kl_ref"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["policy/kl_ref"] > 1e-6


# -- lora.py -----------------------------------------------------------------------------------------------------------


def test_rewards_are_weighted(place, script):
    script("lora")
    for row in rollouts(place.run("by-lora"), 1):
        assert row["reward"] == pytest.approx(row["reward/format_reward"] + 0.5 * row["reward/length_reward"])


def test_a_callback_is_told_and_can_stop_the_training_in_its_step(place, script):
    assert script("lora").out.splitlines() == ["begin 100 0.001", "log 1 True", "log 2 True", "log 3 True", "save 3"]
    run = place.run("by-lora")
    assert (run.steps(), run.checkpoints()) == ([1, 2, 3], ["step_000003"])


def test_an_adapter_is_trained_and_saved_as_peft_loads_it(place, script):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    script("lora")
    run = place.run("by-lora")
    base = AutoModelForCausalLM.from_pretrained(place.folder / "tiny")
    model = PeftModel.from_pretrained(base, run.path / "model")
    trained = {name: parameter for name, parameter in model.named_parameters() if "lora_B" in name}
    assert len(trained) == 4  # q_proj and v_proj in two layers
    assert all(parameter.abs().max() > 0 for parameter in trained.values())
    assert model.peft_config["default"].r == 4


def test_a_new_run_goes_on_from_the_adapter_and_what_it_leaves_is_merged(place, script):
    import torch
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM

    script("lora")
    again = ("--engine", "transformers", "--dataset", "arithmetic", "--prompts-per-step", "2", "--num-generations", "4")
    again += ("--max-completion-length", "8", "--max-steps", "1", "--beta", "0.1", "--output-dir", "from-lora")
    done = place.postrl("grpo", "--model", "by-lora/model", *again)
    assert (done.code, done.survivors) == (0, []), done.err
    assert place.run("from-lora").metrics()[0]["policy/kl_ref"] == 0  # to base and adapter as they were
    assert f"postrl merge {place.folder / 'from-lora'} " in done.out
    assert f"--lora-modules policy={place.folder / 'from-lora' / 'model'} " in done.out
    merged = place.postrl("merge", "from-lora")
    assert merged.code == 0 and "wrote from-lora/merged" in merged.out, merged.err
    base = AutoModelForCausalLM.from_pretrained(place.folder / "tiny")
    expected = PeftModel.from_pretrained(base, place.folder / "from-lora" / "model")
    found = AutoModelForCausalLM.from_pretrained(place.folder / "from-lora" / "merged")
    ids = torch.arange(1, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(found(input_ids=ids).logits, expected(input_ids=ids).logits, rtol=0, atol=1e-5)
    assert place.postrl("merge", "from-lora").code == 2  # nothing is overwritten
    exported = place.postrl("export", "from-lora", "--step", "1", "--output", "step-1")
    assert exported.code == 0 and "wrote step-1 (an adapter, " in exported.out, exported.err
    opened = AutoPeftModelForCausalLM.from_pretrained(place.folder / "step-1")
    tokens = [model.generate(ids, do_sample=False, max_new_tokens=16).tolist() for model in (opened, expected)]
    assert tokens[0] == tokens[1]


# -- recipe.py and notebook.py -----------------------------------------------------------------------------------------


def test_a_recipe_for_trls_parser_trains_and_its_last_lines_run(place, script):
    done = script("recipe")
    assert "train_samples            =          8" in done.out and done.out.splitlines()[-1] == "loss True steps 2"
    assert "otherwise than in TRL" not in done.err  # it has TRL's names
    run = place.run("by-recipe")
    assert run.steps() == [1, 2]
    assert {"train_results.json", "all_results.json", "trainer_state.json"} <= {p.name for p in run.path.iterdir()}
    assert "recipe" in (run.path / "model" / "README.md").read_text()


def test_a_notebook_trains_and_merges_its_adapter_by_hand(place, script):
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    lines = script("notebook").out.splitlines()
    assert lines[0] == "batch 4 rewards 3"
    assert lines[1:3] == [f"step {step} has kl learning_rate loss reward" for step in (1, 2)]
    assert lines[3] == "generated True logged [1, 2]"
    run = place.run("by-notebook")
    ours = AutoPeftModelForCausalLM.from_pretrained(run.path / "model").merge_and_unload().state_dict()
    by_hand = AutoModelForCausalLM.from_pretrained(run.path / "by-hand").state_dict()
    assert all((ours[name] - weight).abs().max() < 1e-6 for name, weight in by_hand.items())


# -- replayed.py -------------------------------------------------------------------------------------------------------


def test_ranks_of_a_script_share_the_folder_that_was_made_for_it_and_the_first_one_speaks(place, script):
    script("plain")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launch, str(SCRIPTS / "replayed.py"), "tiny", "by-plain"]
    finished = Command(command, cwd=place.folder, env=place.env).wait()
    assert finished.code == 0, finished.err
    (first, folder), (second, same) = sorted(line.split() for line in finished.out.splitlines())
    assert (first, second, same) == ("0", "1", folder)
    lines = finished.err.splitlines()
    assert lines.count(f"run folder: {folder} (logs in {folder}/logs)") == 1
    assert lines.count(f"run folder: {folder}") == 1
    assert place.run(folder).steps() == [1, 2]
