"""The rollout worker over its real protocol: a scripted sampler, real reward processes, a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from helpers import tiny_model_dir, tiny_tokenizer
from postrl.config import GRPOConfig
from postrl.data.prompts import PromptSet
from postrl.errors import DataError, PostrlError, RewardError, ServerError, UsageError
from postrl.given import Given
from postrl.launch.placement import place
from postrl.launch.siblings import siblings
from postrl.learning.batch import make_batch
from postrl.rewards.registry import resolve
from postrl.rewards.runner import RewardRunner
from postrl.rollout.sampler import Request, Sampler, derive_seed
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder
from postrl.run.messages import ProtocolError, encode
from postrl.types import Group, Prompt, Rollout, Sampled, VersionSpan
from postrl.worker.building import build_worker
from postrl.worker.groups import check_logps
from postrl.worker.process import serve
from postrl.worker.source import LocalSource, RemoteSource
from postrl.worker.worker import RolloutWorker

TOKENIZER = tiny_tokenizer()


def tokens(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def said(text: str, version: int = 0, **changes: Any) -> Sampled:
    ids = [*tokens(text), TOKENIZER.eos_token_id]
    values = {"completion_ids": ids, "logps": [-0.5] * len(ids), "version_spans": [VersionSpan(version, 0, len(ids))],
              "finish_reason": "stop"}  # fmt: skip
    return Sampled(**{**values, **changes})


@dataclass
class Scripted(Sampler):
    """A sampler that says what the script has for a request; `last_first`: what was asked for last comes first."""

    script: Callable[[int, Request], Sampled]
    last_first: bool = False
    asked: list[Request] = field(default_factory=list)
    before: Callable[[int], None] = lambda nth: None
    came: set[int] = field(default_factory=set)

    async def sample(self, request: Request) -> Sampled:
        nth = len(self.asked)
        self.asked.append(request)
        await asyncio.sleep(0)
        while self.last_first and self.open_after(nth):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(self.before, nth)
        self.came.add(nth)
        return self.script(nth, request)

    def open_after(self, nth: int) -> bool:
        return any(later not in self.came for later in range(nth + 1, len(self.asked)))


def letters(completions, goal, **columns):
    """A reward of the test: how many of the row's letter are in the answer."""
    return [float(text.count(letter)) for text, letter in zip(completions, goal)]


def longest(completions):
    """A reward that compares all that it is called with."""
    return [float(len(c) == max(map(len, completions))) for c in completions]


def undecided(completions, goal):
    """None for every row with an a."""
    return [None if letter == "a" else float(i) for i, letter in enumerate(goal)]


def fails(completions):
    raise ValueError("no such luck")


def prompts(n: int) -> PromptSet:
    return PromptSet(
        [Prompt(f"rows:{i}", None, f"p{i}", tokens(f"p{i}"), {"goal": "ab"[i % 2]}) for i in range(n)], name="rows"
    )


def config(**options: Any) -> GRPOConfig:
    return GRPOConfig(
        **{"prompts_per_step": 2, "num_generations": 3, "max_completion_length": 16, "shuffle": False, **options}
    )


RUNNERS: dict[Any, RewardRunner] = {}
"""Reward workers by function, started once: each is a Python process."""


@pytest.fixture(scope="module", autouse=True)
def reward_workers() -> Iterator[None]:
    yield
    for runner in RUNNERS.values():
        runner.close()


@contextlib.contextmanager
def serving(
    tmp_path: Path, sampler: Scripted, reward: Callable[..., Any] = letters, *, evaluate: int = 0, **options: Any
) -> Iterator[RemoteSource]:
    """A worker in a thread; yields the learner's end of it."""
    chosen = config(**options)
    worker = RolloutWorker(
        chosen,
        train=prompts(5),
        evaluate=prompts(evaluate) if evaluate else None,
        sampler=sampler,
        rewards=RUNNERS.setdefault((reward, chosen.reward_batch), RewardRunner.for_run([resolve(reward)], chosen)),
        tokenizer=TOKENIZER,
    )
    address = f"unix:{tmp_path}/w"
    thread = threading.Thread(target=lambda: asyncio.run(serve(worker, 5, address)), daemon=True)
    thread.start()
    source = RemoteSource(address, chosen)
    yield source
    source.close()
    thread.join(30)
    assert not thread.is_alive(), "the worker did not end when its learner left"


def next_groups(source: RemoteSource, version: int):
    """As the learner does: publish, then ask."""
    with source.pushing(version):
        pass
    return source.groups(version + 1, version)


def abc(index: int, request: Request) -> Sampled:
    return said("aab" if index % 3 == 0 else "b", request.min_version)


# -- what the learner gets ---------------------------------------------------------------------------------------------


def test_groups_are_whole_scored_and_in_order_whatever_order_they_finish_in(tmp_path):
    sampler = Scripted(abc, last_first=True)
    with serving(tmp_path, sampler, seed=7, temperature=0.5, stop=["!"]) as source:
        groups, metrics = next_groups(source, 4)
    assert [(group.prompt_id, group.group_id, group.prompt, group.columns) for group in groups] == [
        ("rows:0", 0, "p0", {"goal": "a"}),
        ("rows:1", 1, "p1", {"goal": "b"}),
    ]
    for group in groups:
        assert [rollout.sample_index for rollout in group.rollouts] == [0, 1, 2]
        assert [rollout.completion for rollout in group.rollouts] == ["aab", "b", "b"]  # without the end-of-turn token
        assert group.rollouts[0].completion_ids[-1] == TOKENIZER.eos_token_id
        assert {rollout.version_spans[0].version for rollout in group.rollouts} == {4}
    assert [[rollout.reward for rollout in group.rollouts] for group in groups] == [[2.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert metrics["reward/letters/mean"] == (5.0, 6.0)
    assert metrics["epoch"] == 2 / 5
    first = sampler.asked[0]
    assert (list(first.prompt_ids), first.min_version) == (tokens("p0"), 4)
    assert (first.sampling.temperature, first.sampling.max_tokens, first.sampling.stop) == (0.5, 16, ("!",))
    assert [request.seed for request in sampler.asked] == [
        derive_seed(7, g, f"rows:{g}", i) for g in range(2) for i in range(3)
    ]


def test_a_group_is_scored_while_others_are_still_sampled(tmp_path):
    scored = tmp_path / "scored"

    def leaves_a_trace(completions):
        scored.touch()
        return [1.0] * len(completions)

    def before(nth: int) -> None:
        if nth == 3:  # the first completion of the second group waits for the reward of the first
            for _ in range(6000):
                if scored.exists():
                    return
                threading.Event().wait(0.01)
            raise AssertionError("the first group was not scored within a minute")

    with serving(tmp_path, Scripted(abc, before=before), leaves_a_trace) as source:
        groups, _ = next_groups(source, 0)
    assert len(groups) == 2


def test_a_greedy_completion_is_scored_by_the_same_functions_and_does_not_stand_beside_the_others(tmp_path):
    def script(index: int, request: Request) -> Sampled:
        return said("a" * (9 if request.sampling.temperature == 0.0 else index + 1))

    with serving(
        tmp_path, Scripted(script), longest, algorithm="remax", loss_aggregation="seq_mean_token_sum"
    ) as source:
        groups, metrics = next_groups(source, 0)
    for group in groups:
        assert (group.greedy.completion, group.greedy.reward, group.greedy.statuses) == (
            "a" * 9,
            1.0,
            {"longest": "scored"},
        )
        assert [rollout.reward for rollout in group.rollouts] == [0.0, 0.0, 1.0]
    assert metrics["reward/longest/mean"] == (2.0, 6.0)
    assert metrics["reward/greedy_mean"] == (2.0, 2.0)
    assert make_batch(groups, 0, torch.device("cpu")).greedy_B.tolist() == [1.0] * 6


def test_a_group_that_teaches_nothing_is_replaced_and_comes_along_as_dropped(tmp_path):
    """Rows with a: 2, 0, 0 of them in the completions; rows with b: 1, 1, 1."""
    with serving(tmp_path, Scripted(abc), dynamic_sampling=True) as source:
        groups, metrics = next_groups(source, 0)
        state, _ = source.state()
    assert [(group.prompt_id, {r.dropped for r in group.rollouts}) for group in groups] == [
        ("rows:0", {None}), ("rows:2", {None}), ("rows:1", {"uninformative"}),
    ]  # fmt: skip
    assert metrics["rollout/dropped_uninformative"] == 3.0 and metrics["rollout/refills"] == 0.5
    assert metrics["reward/letters/mean"] == (7.0, 9.0)  # of all that was judged
    assert (state["left_out"], state["taken"], state["open"]) == (1, {"": 3}, [])
    assert len(make_batch(groups, 0, torch.device("cpu"))) == 6


def test_a_reward_that_compares_sees_the_whole_step(tmp_path):
    sampler = Scripted(lambda index, request: said("a" * (index + 1)))
    with serving(tmp_path, sampler, longest, reward_batch="step", evaluate=2) as source:
        groups, metrics = next_groups(source, 0)
        _, evaluation = source.evaluate(0)
    assert [[rollout.reward for rollout in group.rollouts] for group in groups] == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert metrics["reward/longest/mean"] == (1.0, 6.0)
    assert evaluation["eval/rows/reward"] == (1.0, 2.0)


def test_a_group_that_nothing_could_score_is_stored_and_not_trained_on(tmp_path):
    with serving(tmp_path, Scripted(abc), undecided) as source:
        groups, metrics = next_groups(source, 0)
    assert [{rollout.dropped for rollout in group.rollouts} for group in groups] == [{"unscored"}, {None}]
    assert metrics["group/unscored"] == 1.0
    assert metrics["reward/undecided/status/none"] == (3.0, 6.0)
    assert len(make_batch(groups, 0, torch.device("cpu"))) == 3


def test_prompts_follow_each_other_over_epochs(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        assert source.num_prompts == 5
        ids = [[group.prompt_id for group in next_groups(source, step)[0]] for step in (0, 1, 2)]
    assert ids == [["rows:0", "rows:1"], ["rows:2", "rows:3"], ["rows:4", "rows:0"]]


def test_the_place_in_the_data_travels_as_json_and_continues_in_another_worker(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        next_groups(source, 0)
        state = source.state()
    (tmp_path / "w").unlink()
    with serving(tmp_path, Scripted(abc)) as source:
        source.load_state(*state)
        groups, metrics = next_groups(source, 1)
        assert [(group.prompt_id, group.group_id) for group in groups] == [("rows:2", 2), ("rows:3", 3)]
        assert metrics["epoch"] == 4 / 5


def test_a_reward_file_that_has_changed_since_the_checkpoint_is_named(tmp_path):
    file = tmp_path / "own.py"

    def taken_up(code: str, state: Any = None) -> tuple[Any, str]:
        """(state of a worker that goes on from `state`, what it noted)"""
        file.write_text(code)
        folder = RunFolder(tmp_path)
        given = Given(rewards=[resolve(f"{file}:own")], train=[{"prompt": "one", "prompts": "two"}])
        worker, _ = build_worker(config(), TOKENIZER, Scripted(abc), folder, given=given)
        with contextlib.closing(worker):
            asyncio.run(worker.start())
            if state is not None:
                worker.load_state(state)
            return json.loads(json.dumps(worker.state())), (folder.logs / "notes.log").read_text()

    first = "def own(completions): return [1.0 for _ in completions]\n"
    state, _ = taken_up(first)
    state, notes = taken_up(first, state)
    assert "has changed" not in notes and "column prompts is not given to rewards" in notes
    _, notes = taken_up(first.replace("1.0", "2.0"), state)
    assert notes.count("reward own has changed since the checkpoint: sha256 ") == 1


def test_a_lost_connection_costs_no_batch(tmp_path):
    """The learner gives up while the worker is at work, connects anew, and gets the batch that it asked for."""
    begun = threading.Event()
    go_on = threading.Event()

    def before(nth: int) -> None:
        begun.set()
        go_on.wait(60)

    with serving(tmp_path, Scripted(abc, before=before)) as source:
        with source.pushing(0):
            pass
        source.channel._sock.sendall(encode("groups", {"step": 1, "version": 0}))
        assert begun.wait(60)
        source.channel.close()
        go_on.set()
        groups, metrics = source.groups(1, 0)
    assert [group.group_id for group in groups] == [0, 1]
    assert metrics["rollout/worker_restarts"] == 1.0


def test_prompts_that_another_engine_had_begun_come_first(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        next_groups(source, 0)
        state, finished = source.state()
    state["open"] = [[0, "rows:0", 1, 0], [1, "rows:1", 0, 0]]  # in flight when the run was killed
    embedded = RolloutWorker(
        config(), train=prompts(5), evaluate=None, sampler=Scripted(abc), rewards=RUNNERS[letters, "group"],
        tokenizer=TOKENIZER,
    )  # fmt: skip
    embedded.load_state(json.loads(json.dumps(state)), finished)
    assert embedded.state()["open"] == [[0, "rows:0", 1, 0], [1, "rows:1", 0, 0]]
    groups, _ = LocalSource(embedded, 5).groups(1, 1)
    assert [group.prompt_id for group in groups] == ["rows:0", "rows:1"]
    assert embedded.state()["open"] == []


def test_a_checkpoint_without_prompts_in_flight_is_one_for_servers_too(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        source.load_state({**source.state()[0], "open": []}, [])
        assert len(next_groups(source, 0)[0]) == 2


def test_an_evaluation_prompt_that_did_not_come_is_no_wrong_answer(tmp_path):
    def script(index: int, request: Request) -> Sampled:
        return Sampled([], [], [], "abort") if index == 1 else said("a")

    with serving(tmp_path, Scripted(script), evaluate=4) as source:
        groups, metrics = source.evaluate(0)
    assert [group.prompt_id for group in groups] == ["rows:0", "rows:2", "rows:3"]
    assert metrics["eval/rows/reward"][1] == 3.0
    assert metrics["eval/rows/missing_frac"] == (1.0, 4.0)


def test_evaluation_is_one_greedy_completion_for_each_prompt(tmp_path):
    cut = Scripted(lambda index, request: said("a", finish_reason="length" if index == 2 else "stop"))
    with serving(tmp_path, cut, evaluate=3) as source:
        assert source.has_evaluation
        groups, metrics = source.evaluate(2)
    assert [len(group.rollouts) for group in groups] == [1, 1, 1]
    assert {request.sampling.temperature for request in cut.asked} == {0.0}
    assert metrics == {
        "eval/rows/reward": (2.0, 3.0),
        "eval/rows/completion_length": (6.0, 3.0),
        "eval/rows/truncated_frac": (1.0, 3.0),
        "eval/rows/missing_frac": (0.0, 3.0),
    }


def test_evaluation_may_sample_several_completions_as_training_does(tmp_path):
    cut = Scripted(abc)
    with serving(tmp_path, cut, evaluate=2, num_generations_eval=9, temperature=0.7) as source:
        groups, metrics = source.evaluate(2)
    assert [[r.sample_index for r in group.rollouts] for group in groups] == [[*range(9)]] * 2
    assert all(group.greedy is None for group in groups)
    assert {request.sampling.temperature for request in cut.asked} == {0.7}
    assert len({request.seed for request in cut.asked}) == 18 and metrics["eval/rows/reward"][1] == 18


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_reward_that_fails_beyond_its_budget_is_the_learners_error_and_the_worker_serves_on(tmp_path):
    with serving(tmp_path, Scripted(abc), fails, evaluate=1) as source:
        for ask in (lambda: next_groups(source, 0), lambda: source.evaluate(0)):
            with pytest.raises(RewardError, match="no such luck") as caught:
                ask()
            assert "--reward-error-budget" in caught.value.hint
        assert source.state()[0]["taken"] == {"": 2}


def test_a_sampler_that_fails_is_the_learners_error(tmp_path):
    def script(index: int, request: Request) -> Sampled:
        if index == 4:
            raise ServerError("vLLM server 0 went away", hint="see its log")
        return abc(index, request)

    with serving(tmp_path, Scripted(script)) as source:
        with pytest.raises(ServerError, match="vLLM server 0 went away") as caught:
            next_groups(source, 0)
        assert caught.value.hint == "see its log"


def test_what_the_policy_did_not_write_needs_no_log_prob():
    nan = float("nan")
    spoken = Rollout("p:0", 0, [1], [2, 3, 4], [-1.0, nan, nan], [], "stop", loss_mask=[1, 0, 0])
    check_logps([Group("p:0", 0, "", None, {}, [spoken])])


@pytest.mark.parametrize(("missing", "refused"), [(1, False), (2, True)])
def test_more_than_one_missing_log_prob_in_a_hundred_is_refused(tmp_path, missing, refused):
    def script(index: int, request: Request) -> Sampled:
        nans = missing if index == 0 else 0
        return said("a" * 24, logps=[float("nan")] * nans + [-1.0] * (25 - nans))  # 150 tokens in all

    with serving(tmp_path, Scripted(script)) as source:
        if refused:
            with pytest.raises(ServerError, match="2 of 150 tokens came without a log-prob"):
                next_groups(source, 0)
        else:
            next_groups(source, 0)


def test_a_place_in_other_data_is_refused(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        state, finished = source.state()
        with pytest.raises(DataError, match="not the one that the checkpoint was made with"):
            source.load_state({**state, "prompts": 1}, finished)


def test_a_request_that_it_does_not_know_is_an_error(tmp_path):
    with serving(tmp_path, Scripted(abc)) as source:
        with pytest.raises(PostrlError, match="asked for 'dance'"):
            source._ask("dance", timeout=30)
        with pytest.raises(PostrlError, match="KeyError"):
            source.channel.request(encode("groups"), timeout=30, waiting_for="groups")


def test_a_bug_in_the_worker_travels_as_what_it_is(tmp_path):
    def script(index: int, request: Request) -> Sampled:
        raise ZeroDivisionError("by zero")

    with (
        serving(tmp_path, Scripted(script)) as source,
        pytest.raises(PostrlError, match="ZeroDivisionError: by zero"),
    ):
        next_groups(source, 0)


def test_another_version_of_the_protocol_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("postrl.worker.process.PROTOCOL", 99)
    with pytest.raises(ProtocolError, match="speaks protocol 99"), serving(tmp_path, Scripted(abc)):
        pass


# -- how it is put together --------------------------------------------------------------------------------------------


def test_a_data_set_brings_its_own_reward_and_its_size_is_noted(tmp_path):
    folder = RunFolder(tmp_path)
    worker, train = build_worker(
        GRPOConfig(dataset=["arithmetic"], eval_dataset="arithmetic:eval", eval_prompts=7),
        TOKENIZER,
        Scripted(abc),
        folder,
        stop_token_ids=[TOKENIZER.eos_token_id],
    )
    worker.close()
    assert worker.rewards.names == ("arithmetic",)
    assert len(worker.evaluation.prompts) == 7
    notes = (folder.logs / "notes.log").read_text().splitlines()
    assert notes[0].startswith(f"arithmetic: {len(train.prompts)} prompts")
    assert len(notes) == 2


def test_what_was_guessed_of_the_data_is_noted(tmp_path):
    folder = RunFolder(tmp_path)
    given = Given(rewards=[resolve(letters)], train=[{"question": "one"}])
    worker, _ = build_worker(config(), TOKENIZER, Scripted(abc), folder, given=given)
    worker.close()
    notes = (folder.logs / "notes.log").read_text()
    assert "question for prompt (--prompt-column" in notes and notes.count("--chat makes each a user message") == 1


def test_the_worker_of_servers_refuses_a_token_that_their_model_has_not(tmp_path):
    tokenizer = tiny_tokenizer()
    known = len(tokenizer)
    tokenizer.add_tokens(["Answer with just"])
    tokenizer.save_pretrained(tiny_model_dir(tmp_path / "model"))
    folder = RunFolder(tmp_path / "run")
    folder.prepare(GRPOConfig(model=str(tmp_path / "model"), dataset=["arithmetic"], output_dir=str(folder.path)))
    env = Connections(
        ("http://127.0.0.1:9",), worker=f"unix:{tmp_path}/worker.sock", model_path=str(tmp_path / "model")
    )
    done = subprocess.run(
        [sys.executable, "-m", "postrl", "worker", str(folder.path)], env={**os.environ, **env.to_env()},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"arithmetic:0 has the token {known} ('Answer with just')" in folder.take_error("worker")["message"]


def test_rows_and_functions_of_a_script_go_first(tmp_path):
    rows = [{"prompt": "one", "goal": "x"}, {"prompt": "two", "goal": "y"}]
    given = Given(rewards=[resolve(letters)], train=rows)
    worker, train = build_worker(
        GRPOConfig(dataset=["arithmetic"]), TOKENIZER, Scripted(abc), RunFolder(tmp_path), given=given
    )
    worker.close()
    assert worker.rewards.names == ("letters",)
    assert [prompt.columns["goal"] for prompt in train.prompts] == ["x", "y"]


def test_several_data_sets_are_each_scored_by_their_own_reward(tmp_path):
    questions = [{"question": "3 + 4?", "answer": "So #### 7"}, {"question": "?", "answer": "\\boxed{}"}]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    folder = RunFolder(tmp_path)
    settings = config(
        dataset=["arithmetic", "gsm8k"], dataset_path=[f"gsm8k={tmp_path}/gsm8k.jsonl"], prompts_per_step=81
    )
    tokenizer = tiny_tokenizer()
    worker, _ = build_worker(settings, tokenizer, Scripted(lambda index, request: said("#### 7")), folder)
    with contextlib.closing(worker):
        groups, metrics = asyncio.run(worker.groups(0))
    assert {(group.prompt_id.split(":")[0], *group.rollouts[0].rewards) for group in groups} == {
        ("arithmetic", "arithmetic"), ("gsm8k", "math"),
    }  # fmt: skip
    assert metrics["reward/math/mean"] == (3.0, 3.0)
    assert metrics["reward/arithmetic/mean"][1] == 240.0
    assert metrics["reward/arithmetic/status/correct"][1] == 240.0
    assert {"reward/math/latency_p99", "reward/arithmetic/latency_p99"} <= metrics.keys()
    assert "81 prompts (1 without a usable prompt or answer: gsm8k:1)" in (folder.logs / "notes.log").read_text()


def test_the_functions_of_a_script_score_the_rows_of_a_data_set_with_a_reward_of_its_own(tmp_path):
    given = Given(rewards=[resolve(longest)])
    worker, train = build_worker(
        config(dataset=["arithmetic"]), TOKENIZER, Scripted(abc), RunFolder(tmp_path), given=given
    )
    worker.close()
    assert worker.rewards.names == ("longest",)
    assert {prompt.rewards for prompt in train.prompts} == {()}


def test_length_is_punished_once(tmp_path):
    with pytest.raises(UsageError, match="both punish long completions"):
        GRPOConfig(algorithm="dapo", reward=["math", "soft_overlong"])
    with pytest.raises(
        UsageError, match=r"overlong_buffer = 0.2 \(algorithm = dapo\) and the reward soft_overlong both"
    ) as error:
        build_worker(
            GRPOConfig(algorithm="dapo", dataset=["arithmetic"]), TOKENIZER, Scripted(abc), RunFolder(tmp_path),
            given=Given(rewards=[resolve("arithmetic"), resolve("soft_overlong")]),
        )  # fmt: skip
    assert "--overlong-buffer 0" in error.value.hint


def test_the_reward_of_the_evaluation_set_is_there_too(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "3 + 4?", "answer": "#### 7"}) + "\n")
    settings = config(dataset=["gsm8k"], dataset_path=[str(tmp_path / "test.jsonl")], eval_dataset="arithmetic", seed=1)
    worker, _ = build_worker(settings, TOKENIZER, Scripted(lambda index, request: said("7")), RunFolder(tmp_path))
    with contextlib.closing(worker):
        groups, _ = asyncio.run(worker.evaluate(0))
    assert {tuple(group.rollouts[0].statuses) for group in groups} == {("arithmetic",)}


def test_options_and_settings_reach_the_reward(tmp_path):
    given = Given(train=[{"prompt": "one", "answer": "7"}])
    settings = config(
        reward=["arithmetic", "soft_overlong"], reward_arg=["soft_overlong.cache=16"], reward_weights=[1, 0.5]
    )
    sampler = Scripted(lambda index, request: said("7777777"))  # 7 tokens and the end of turn, of 16
    worker, _ = build_worker(settings, TOKENIZER, sampler, RunFolder(tmp_path), given=given)
    with contextlib.closing(worker):
        groups, _ = asyncio.run(worker.groups(0))
    lengths = {len(r.completion_ids) for group in groups for r in group.rollouts}
    assert {r.reward for group in groups for r in group.rollouts} == {0.5 * -length / 16 for length in lengths}


def test_data_without_a_reward_needs_one(tmp_path):
    given = Given(train=[{"prompt": "one"}])
    with pytest.raises(UsageError, match="no reward is given, and train has none of its own"):
        build_worker(GRPOConfig(), TOKENIZER, Scripted(abc), RunFolder(tmp_path), given=given)


# -- a process of its own ----------------------------------------------------------------------------------------------


def test_what_is_wrong_with_the_data_shows_before_a_trainer_starts(tmp_path):
    """Servers that run already, so nothing else takes time: the worker loads its data, fails, and is asked why."""
    (tmp_path / "rows.jsonl").write_text('{"question": "3 + 4?"}\n')
    model = tiny_model_dir(tmp_path / "model")
    folder = RunFolder(tmp_path / "run")
    settings = GRPOConfig(
        model=str(model), dataset=[str(tmp_path / "rows.jsonl")], reward=["math"], engine="vllm",
        vllm_server_url=["http://127.0.0.1:9"], output_dir=str(folder.path),
    )  # fmt: skip
    folder.prepare(settings)
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    with (
        pytest.raises(DataError, match="prompt") as caught,
        siblings(
            settings,
            folder,
            place(0, engine="vllm", num_servers=0, tensor_parallel_size=1, num_processes=1),
            model_path=str(model),
        ),
    ):
        pass
    assert caught.value.hint
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= mine


def test_a_worker_process_serves_until_its_learner_leaves(tmp_path):
    model = tiny_model_dir(tmp_path / "model")
    folder = RunFolder(tmp_path / "run")
    settings = GRPOConfig(
        model=str(model),
        dataset=["arithmetic"],
        engine="vllm",
        vllm_server_url=["http://127.0.0.1:9"],
        output_dir=str(folder.path),
    )
    folder.prepare(settings)
    with siblings(
        settings,
        folder,
        place(0, engine="vllm", num_servers=0, tensor_parallel_size=1, num_processes=1),
        model_path=str(model),
    ) as around:
        source = RemoteSource(around.connections.worker, settings)
        assert source.num_prompts > 0
        assert source.state()[0]["taken"] == {"": 0}
        source.close()
        assert around.worker.process.wait(60) == 0
        around.check()  # it may finish
    code = "import sys; from postrl.run.connections import Connections; sys.stdout.write(Connections.from_env().worker)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **around.connections.to_env()}, capture_output=True, text=True
    )
    assert done.stdout == around.connections.worker
