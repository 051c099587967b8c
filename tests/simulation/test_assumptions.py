"""What a simulation assumes, and where each value comes from."""

from __future__ import annotations

import pytest

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.simulation.assumptions import ASSUMPTIONS, GPU, Assumptions, given, guessed, model_size, parse


def config(**changes):
    return GRPOConfig(**{"model": "Qwen/Qwen2.5-7B", **changes})


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen2.5-7B", 7e9), ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9), ("smollm2-135m", 135e6),
        ("google/gemma-3-4b-it", 4e9), ("mine/model-v2", None), ("", None),
    ],
)  # fmt: skip
def test_the_size_of_a_model_is_read_from_its_name(name, size):
    assert model_size(name) == size


def test_the_guesses_follow_the_model_and_the_settings():
    small, large = guessed(config(model="x-1B"), GPU), guessed(config(model="x-10B"), GPU)
    assert small.train_tokens_per_s == pytest.approx(10 * large.train_tokens_per_s)
    assert small.push_seconds == pytest.approx(large.push_seconds / 10)
    assert guessed(config(max_completion_length=800), GPU).length_mean == 400
    assert guessed(config(vllm_arg=["max-num-seqs=32"]), GPU).slots == 32
    assert guessed(config(lora_rank=8), GPU).push_seconds < guessed(config(), GPU).push_seconds
    two = guessed(config(tensor_parallel_size=2), GPU)
    assert two.prefill_tokens_per_s == pytest.approx(2 * guessed(config(), GPU).prefill_tokens_per_s)


def test_a_decode_step_is_the_weights_once_and_the_work_of_each_sequence():
    speed = guessed(config(model="x-10B"), GPU).speed()
    assert speed.base == pytest.approx(0.003 + 20e9 / 2e12)
    assert speed.per_sequence == pytest.approx(20e9 / 4e14)


def test_every_value_says_where_it_comes_from():
    assumed = guessed(config(), GPU).having({"length_mean": 300.0}, "given")
    assert assumed.sources["length_mean"] == "given"
    assert assumed.sources["train_tokens_per_s"] == "a guess for 7B parameters on H100s"
    assert "unknown" in guessed(config(model="mine"), GPU).sources["train_tokens_per_s"]


def test_what_is_given_becomes_numbers():
    args = parse(["length-mean=300", "--slots=64", "length_quantiles=20:100:400", "from=runs/mine", "gpus=8"])
    assert given(args) == {"length_mean": 300.0, "slots": 64.0, "length_quantiles": (20.0, 100.0, 400.0)}


@pytest.mark.parametrize(
    ("arg", "says"),
    [
        ("lenght=3", "names 'lenght'.*length_mean"),
        ("endless=2", "endless is '2', expected a number from 0 to 1"),
        ("train-tokens-per-s=fast", "train_tokens_per_s is 'fast', expected a number"),
        ("push-seconds=inf", "push_seconds is 'inf', expected a number 0 or more"),
        ("length-quantiles=5", "length_quantiles is '5'"),
        ("length-quantiles=9:5", "length_quantiles is '9:5'"),
    ],
)
def test_a_wrong_assumption_is_refused_with_what_is_right(arg, says):
    with pytest.raises(UsageError, match=f"(?s){says}"):
        given(parse([arg]))


def test_speeds_of_a_server_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="full_tokens_per_s = 50 and lone_tokens_per_s = 100 do not fit slots = 8"):
        Assumptions(lone_tokens_per_s=100.0, full_tokens_per_s=50.0, slots=8.0).speed()


def test_further_ranks_add_their_share():
    assumed = Assumptions(train_tokens_per_s=100.0, rank_efficiency=0.9)
    assert [assumed.train_speed(ranks) for ranks in (1, 2, 8)] == pytest.approx([100, 190, 730])


def test_the_docs_have_every_assumption():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    for name, f in ASSUMPTIONS.items():
        assert f"| `{name}` | {f.metadata['help']} |" in page, name
