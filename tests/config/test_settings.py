"""Settings: types, ranges, combinations, files."""

from __future__ import annotations

from dataclasses import fields

import pytest

from postrl import GRPOTrainer, PPOTrainer, RLOOTrainer
from postrl.config import GRPOConfig
from postrl.config.setting import PANELS, in_steps
from postrl.config.settings import Settings
from postrl.errors import UsageError


def refused(**settings: object) -> str:
    with pytest.raises(UsageError) as caught:
        GRPOConfig(**settings)
    assert caught.value.hint, "an error says what to type next"
    return str(caught.value)


def test_the_defaults_are_a_valid_configuration():
    assert GRPOConfig().rollouts_per_step == 32 * 8


def test_every_setting_has_a_panel_and_a_help_line_that_is_a_sentence():
    for f in fields(Settings):
        assert f.metadata["panel"] in PANELS
        assert f.metadata["help"].endswith(".")


def test_two_configurations_do_not_share_a_list():
    GRPOConfig().dataset.append("gsm8k")
    assert GRPOConfig().dataset == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"temperature": "hot"}, "temperature is 'hot', expected float"),
        ({"max_steps": 2.5}, "max_steps is 2.5, expected int"),
        ({"max_steps": True}, "max_steps is True, expected int"),
        ({"shuffle": "yes"}, "shuffle is 'yes', expected bool"),
        ({"run_name": {"a": 1}}, "run_name is {'a': 1}"),
        ({"reward_weights": ["much"]}, "reward_weights is ['much']"),
        ({"learning_rate": None}, "learning_rate is None, expected float"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_the_type_that_is_expected(settings, found):
    assert found in refused(**settings)


def test_numbers_written_as_text_are_read_as_yaml_leaves_them():
    config = GRPOConfig(learning_rate="1e-6", max_steps="3", stop="\n", output_dir="x")
    assert (config.learning_rate, config.max_steps, config.stop) == (1e-6, 3, ["\n"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_generations", 0),
        ("prompts_per_step", -1),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("learning_rate", float("inf")),
        ("beta", -0.1),
        ("epsilon_high", -0.1),
        ("max_steps", 0),
        ("max_steps", -2),
        ("gpu_memory_utilization", 1.5),
        ("reward_error_budget", 2.0),
        ("lora_dropout", 1.0),
        ("num_processes", 0),
        ("reward_workers", -1),
        ("num_train_epochs", 0),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_what_to_set(name, value):
    message = refused(**{name: value})
    assert f"{name} is {value}" in message
    assert f"set {name} to " in message


def test_all_that_is_wrong_with_the_settings_is_said_at_once():
    message = refused(minibatches=5, sync_ref_model=True, vllm_arg=["x"])
    assert message.startswith("GRPOConfig has 3 settings that cannot be:")
    assert all(name in message for name in ("minibatches = 5", "beta = 0", "vllm_arg is 'x'"))


@pytest.mark.parametrize("name", ["save_steps", "eval_steps", "logging_steps", "warmup_steps"])
def test_steps_are_whole_or_a_share_of_all(name):
    assert type(getattr(GRPOConfig(**{name: 7.0}), name)) is int
    assert getattr(GRPOConfig(**{name: 0.25}), name) == 0.25
    assert f"{name} is 1.5" in refused(**{name: 1.5})
    assert (in_steps(0.25, 10), in_steps(7, 10), in_steps(0, 10)) == (3, 7, 0)


def test_an_unknown_choice_lists_the_choices():
    assert "choose one of auto, float32, bfloat16" in refused(dtype="bf16")


def test_a_group_of_one_has_no_baseline():
    assert "num_generations is 1" in refused(num_generations=1)


def test_a_group_of_one_is_fine_where_the_batch_or_a_critic_is_the_baseline():
    for algorithm in ("flash_reinforce", "reinforce_pp", "ppo"):
        assert GRPOConfig(algorithm=algorithm, num_generations=1).num_generations == 1
    assert "group of one has no baseline" in refused(num_generations=1, scale_rewards="batch")


def test_minibatches_must_divide_the_batch_and_the_message_shows_the_arithmetic():
    message = refused(prompts_per_step=3, num_generations=4, minibatches=5)
    assert "3 x 4 = 12" in message and "minibatches = 5" in message


def test_adapters_need_servers_that_load_them():
    message = refused(weight_sync="lora", engine="transformers", lora_rank=8)
    assert "weight_sync = lora" in message and "engine = transformers" in message
    GRPOConfig(weight_sync="merge", engine="transformers", lora_rank=8)


def test_all_weights_as_they_are_and_an_adapter_beside_them_is_not_one_thing():
    message = refused(weight_sync="full", lora_rank=8)
    assert "lora_rank = 8" in message and "weight_sync='merge'" in message


def test_weights_need_one_reward_each():
    assert "2 reward_weights for 1 rewards" in refused(reward=["math"], reward_weights=[1, 2])


def test_a_dataset_path_says_for_which_of_several_data_sets_it_is():
    message = refused(dataset=["gsm8k", "mbpp=2"], dataset_path="rows.jsonl")
    assert "gsm8k, mbpp" in message and "dataset_path=['gsm8k=rows.jsonl']" in message
    refused(dataset_path=["a.jsonl", "b.jsonl"])
    GRPOConfig(dataset=["gsm8k", "mbpp=2"], dataset_path=["mbpp=rows.jsonl"])


def test_a_microbatch_must_hold_one_completion():
    assert "max_tokens_per_microbatch = 100" in refused(max_tokens_per_microbatch=100)


def test_the_embedded_engine_and_a_server_url_exclude_each_other():
    assert "remove vllm_server_url" in refused(engine="transformers", vllm_server_url=["http://127.0.0.1:8000"])


def test_a_server_url_needs_its_scheme():
    assert "http://host:port" in refused(vllm_server_url=["localhost:8000"])


def test_the_embedded_engine_has_one_rank():
    assert "num_processes = 2" in refused(engine="transformers", num_processes=2)


def test_a_vllm_flag_is_written_with_an_equals_sign():
    assert "KEY=VALUE" in refused(vllm_arg=["enforce-eager"])


@pytest.mark.parametrize("arg", ["cache=64", "soft_overlong.cache"])
def test_an_option_of_a_reward_names_reward_key_and_value(arg):
    assert "NAME.KEY=VALUE" in refused(reward_arg=[arg])


def test_an_algorithm_brings_its_own_defaults_and_what_is_given_wins():
    assert GRPOConfig(algorithm="dapo").epsilon_high == 0.28
    assert GRPOConfig(algorithm="dapo", epsilon_high=0.25).epsilon_high == 0.25
    assert GRPOConfig().num_generations == 8 and GRPOConfig(algorithm="vapo").num_generations == 16


def test_a_saved_configuration_is_read_back_as_it_was(tmp_path):
    for algorithm in ("grpo", "dapo", "rloo", "vapo"):
        saved = GRPOConfig(algorithm=algorithm, epsilon_high=0.3)
        saved.save(tmp_path / "config.yaml")
        assert GRPOConfig.from_yaml(tmp_path / "config.yaml") == saved


def test_another_algorithm_on_the_settings_of_a_run_has_its_own_defaults_and_keeps_what_was_chosen(tmp_path):
    GRPOConfig(model="m", learning_rate=1e-5, prompts_per_step=4).save(tmp_path / "config.yaml")
    dapo = GRPOConfig.from_yaml(tmp_path / "config.yaml", algorithm="dapo")
    assert dapo == GRPOConfig(algorithm="dapo", model="m", learning_rate=1e-5, prompts_per_step=4)
    assert (dapo.num_generations, dapo.epsilon_high, dapo.dynamic_sampling) == (16, 0.28, True)
    GRPOConfig(algorithm="dapo", model="m", output_dir=str(tmp_path), run_name="it").save(tmp_path / "config.yaml")
    assert GRPOConfig.from_yaml(tmp_path / "config.yaml", algorithm="rloo") == GRPOConfig(algorithm="rloo", model="m")
    resumed = GRPOConfig.from_yaml(tmp_path / "config.yaml", algorithm="rloo", resume=True)
    assert (resumed.output_dir, resumed.run_name) == (str(tmp_path), "it")


def test_what_a_file_of_ones_own_says_counts_under_another_algorithm_too(tmp_path):
    (tmp_path / "mine.yaml").write_text("algorithm: grpo\nnum_generations: 8\noutput_dir: here\n")
    config = GRPOConfig.from_yaml(tmp_path / "mine.yaml", algorithm="dapo")
    assert (config.algorithm, config.num_generations, config.output_dir) == ("dapo", 8, f"{tmp_path}/here")


def test_a_reference_that_follows_needs_a_reference_that_can_move():
    assert "beta = 0 holds no reference" in refused(sync_ref_model=True)
    assert "does not move" in refused(sync_ref_model=True, beta=0.1, lora_rank=8)
    assert GRPOConfig(sync_ref_model=True, beta=0.1).ref_model_sync_steps == 512


def test_a_dual_clip_lies_above_the_trust_region():
    assert "dual_clip is 1.25" in refused(dual_clip=1.25, epsilon_high=0.28)
    assert "1 + epsilon_high = 1.28" in refused(dual_clip=float("nan"), epsilon_high=0.28)
    assert GRPOConfig(dual_clip=3).dual_clip == 3.0


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"is_low": 0.5, "is_correction": "seed"}, "is_low = 0.5 has no meaning for is_correction = seed"),
        (
            {"is_high": 2.0, "is_correction": "none"},
            "remove is_high, or use is_correction='tis' or tis_seq or icepop",
        ),
        ({"is_eps": 0.2}, "is_eps = 0.2 has no meaning for is_correction = tis"),
        ({"is_delta": 0.2, "is_correction": "icepop"}, "remove is_delta, or use is_correction='opsm'"),
    ],
)
def test_a_bound_that_the_correction_does_not_have_is_refused_with_both_settings(settings, found):
    assert found in refused(**settings)


@pytest.mark.parametrize(
    ("correction", "name", "value"),
    [
        ("tis", "is_low", 1.1),
        ("tis", "is_high", 0.9),
        ("seed", "is_eps", 0),
        ("seed", "is_eps", 1.5),
        ("opsm", "is_delta", 0),
    ],
)
def test_bounds_of_ratios_lie_around_one(correction, name, value):
    assert f"{name} is {float(value)}" in refused(**{name: value, "is_correction": correction})


def test_settings_are_given_by_name():
    for unnamed in (("runs/x", 3), (3,)):
        with pytest.raises(UsageError, match="by name, got 3"):
            GRPOConfig(*unnamed)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_saved_configuration_reads_back_equal(tmp_path):
    config = GRPOConfig(model="m", dataset=["gsm8k=0.5"], learning_rate=1e-5, stop=["\n", "é"], epsilon_high=None)
    config.save(tmp_path / "config.yaml")
    assert GRPOConfig.from_yaml(tmp_path / "config.yaml") == config


def test_the_command_line_wins_over_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("model: a\nmax_steps: 5\n")
    config = GRPOConfig.from_yaml(tmp_path / "c.yaml", max_steps=7)
    assert (config.model, config.max_steps) == ("a", 7)


def test_the_command_line_wins_over_a_trl_name_in_the_file(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("bf16: true\n")
    assert GRPOConfig.from_yaml(tmp_path / "c.yaml", dtype="float32").dtype == "float32"


def test_yaml_writes_numbers_and_single_items_in_its_own_way(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "learning_rate: 1e-6\ndataset: gsm8k\nsave_total_limit: null\nscale_rewards: none\n"
    )
    config = GRPOConfig.from_yaml(tmp_path / "c.yaml")
    assert (config.learning_rate, config.dataset) == (1e-6, ["gsm8k"])
    assert (config.save_total_limit, config.scale_rewards) == (None, "none")


def test_an_unknown_key_names_the_file_and_the_nearest_setting(tmp_path):
    (tmp_path / "c.yaml").write_text("learning_rat: 1\n")
    with pytest.raises(UsageError, match=r"(?s)c\.yaml has no setting learning_rat.*did you mean learning_rate"):
        GRPOConfig.from_yaml(tmp_path / "c.yaml")


def test_every_number_says_what_it_may_be():
    numbers = {f.name for f in fields(Settings) if str(f.type).startswith(("int", "float", "Steps"))}
    told = {f.name for f in fields(Settings) if f.metadata["within"]}
    assert numbers - told == {"dual_clip"}, "whose range depends on epsilon_high"
    assert told <= numbers


def test_rewards_of_stored_completions_depend_on_all_settings_of_data_and_rewards():
    of_panels = {f.name for f in fields(Settings) if f.metadata["panel"] in ("Data", "Reward")}
    assert GRPOConfig.part("score") - of_panels == {"eval_dataset", "max_completion_length"}
    assert of_panels <= GRPOConfig.part("score")


def test_what_depends_on_a_setting_is_one_of_four_things():
    assert {name for f in fields(Settings) for name in f.metadata["part_of"]} == {"plan", "serve", "score", "reward"}


def test_an_algorithm_has_the_defaults_of_the_settings():
    from postrl.algorithms.algorithm import Algorithm

    of_a_run = {"reward_weights", "max_completion_length"}
    own = {f.name: f.default for f in fields(Algorithm) if f.name in GRPOConfig().to_dict() and f.name not in of_a_run}
    assert own == {name: getattr(GRPOConfig(), name) for name in own} and len(own) > 25


def test_each_trainer_has_settings_with_the_defaults_of_its_algorithm():
    for trainer, algorithm in ((GRPOTrainer, "grpo"), (PPOTrainer, "ppo"), (RLOOTrainer, "rloo")):
        assert trainer.settings().algorithm == algorithm
        usual = trainer.settings.defaults_of(algorithm)
        assert {name: getattr(trainer.settings(), name) for name in usual} == usual
