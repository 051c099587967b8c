from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import psutil
import pytest

from postrl import __version__
from postrl.errors import RewardError, UsageError
from postrl.rewards.registry import resolve, with_options
from postrl.rewards.runner import RewardRunner, as_inputs
from postrl.types import Prompt
from rewards import functions
from rewards.groups import PATIENCE, group, lives, reward_processes_of, runner, score, statuses, values, wait_until

CHAT = [{"role": "user", "content": "What is 3 + 4?"}]


# -- what a function gets ----------------------------------------------------------------------------------------------


def test_columns_arrive_by_name_as_the_objects_they_were():
    columns = {
        "when": datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC),
        "price": Decimal("1.10"),
        "scalar": np.float32(2.5),
        "raw": b"\x00\xff",
        "pair": (1, 2),
        "nested": {"a": [1, None]},
    }

    def all_as_sent(prompts, completions, completion_ids, **sent):
        sent = {name: values for name, values in sent.items() if not name.startswith("log_")}
        same = sent == {name: [value] * 2 for name, value in columns.items()}
        kinds = all(type(sent[name][0]) is type(value) for name, value in columns.items())
        return [same, kinds and completion_ids == [[2], [2, 2]] and prompts == ["What is 3 + 4?"] * 2]

    with runner(all_as_sent) as rewards:
        g = group("a", "b", **columns)
        score(rewards, g)
    assert values(g, "all_as_sent") == [1.0, 1.0], rewards.failures


def test_conversational_groups_arrive_as_messages():
    def as_messages(prompts, completions):
        assert prompts == [CHAT, CHAT]
        return [len(messages[0]["content"]) + (messages[0]["role"] == "assistant") for messages in completions]

    with runner(as_messages) as rewards:
        g = group("a", "bbb", messages=CHAT)
        score(rewards, g)
    assert values(g, "as_messages") == [2.0, 4.0], rewards.failures


class Longest:
    def __init__(self, bonus):
        self.bonus = bonus

    def __call__(self, completions):
        return [len(text) + self.bonus for text in completions]


def test_closures_partials_and_callable_objects_are_called():
    factor = 3
    rewards = runner(
        lambda completions: [factor * len(c) for c in completions],
        lambda completions, answer: [float(c == answer[0]) for c in completions],
        partial(functions.length),
        Longest(0.5),
    )
    with rewards:
        g = group("bb", answer="bb")
        score(rewards, g)
    assert g.rollouts[0].rewards == {"<lambda>": 6.0, "<lambda>_2": 1.0, "length": 2.0, "Longest": 2.5}


def bonus(completions, answer, scale=1.0, **columns):
    return [scale * len(text) + 100 * ("scale" in columns) for text in completions]


def test_no_column_fills_what_a_partial_has_bound():
    def plain(completions, scale=1.0):
        return [scale * len(text) for text in completions]

    with runner(partial(plain, scale=2.0), partial(bonus, scale=3.0)) as rewards:
        g = group("aa", scale=100.0, answer="x")
        score(rewards, g)
    assert values(g, "plain") == [4.0]
    assert values(g, "bonus") == [6.0]


def scaled(scale, completions, **columns):
    return [scale * len(text) + 100 * ("scale" in columns) for text in completions]


def test_no_column_fills_what_a_partial_has_bound_by_position():
    with runner(partial(scaled, 3.0)) as rewards:
        g = group("aa", scale=100.0, answer="x")
        score(rewards, g)
    assert (values(g, "scaled"), rewards.failures["scaled"].first) == ([6.0], "")


def test_functions_of_a_script_may_use_the_module_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("def twice(x): return 2 * x\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import beside, sys\n"
        "from rewards.groups import group, runner, score\n"
        "def shout(completions): return [beside.twice(len(text)) for text in completions]\n"
        "def main():\n"
        "    with runner(shout, lambda completions: shout(completions)) as rewards:\n"
        "        score(rewards, g := group('abc'))\n"
        "    print(g.rollouts[0].rewards, rewards.failures)\n"
        "main()\n"  # no `if __name__` guard: reward processes do not import the script
    )
    tests = {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.check_output([sys.executable, script], env=os.environ | tests, cwd="/", text=True)
    assert printed.startswith("{'shout': 6.0, '<lambda>': 6.0}"), printed


def test_an_async_function_keeps_its_event_loop_between_calls():
    with runner(functions.waits) as rewards:
        first, second = group("a"), group("b", "c")
        score(rewards, first)
        score(rewards, second)
    assert values(second, "waits") == [1.0, 1.0], rewards.failures


def test_prints_go_to_the_log_and_standard_input_is_empty(tmp_path):
    log = tmp_path / "logs" / "rewards.log"
    with runner(functions.prints, log_path=log) as rewards:
        g = group("one", "two")
        score(rewards, g)
    assert values(g, "prints") == [1.0, 1.0]
    assert log.read_text().splitlines() == ["seen on stdout: one two", "seen on stderr \\udcff", "seen from a child"]


# -- many functions and many groups ------------------------------------------------------------------------------------


def test_scores_go_to_their_own_rollouts():
    groups = [group(*("x" * (10 * i + j) for j in range(3))) for i in range(20)]
    with runner(functions.length, "arithmetic") as rewards:
        for g in groups:
            g.columns["answer"] = 1
        score(rewards, *groups)
    assert [values(g, "length") for g in groups] == [[10.0 * i, 10.0 * i + 1, 10.0 * i + 2] for i in range(20)]


def test_functions_are_called_at_the_same_time(tmp_path):
    def other(completions, mine, theirs):
        return functions.meets(completions, theirs, mine)

    with runner(functions.meets, other) as rewards:
        g = group("a", mine=str(tmp_path / "a"), theirs=str(tmp_path / "b"))
        score(rewards, g)
    assert g.rollouts[0].rewards == {"meets": 1.0, "other": 1.0}


def test_the_reward_is_the_weighted_sum_of_what_was_scored():
    def second_is_none(completions):
        return [1.0, None, None]

    def third_is_none(completions):
        return [10.0, 20.0, None]

    with runner(second_is_none, third_is_none, weights=[0.5, 2.0]) as rewards:
        g = group("a", "b", "c")
        score(rewards, g)
    assert [rollout.reward for rollout in g.rollouts] == [20.5, 40.0, None]
    assert statuses(g, "second_is_none") == ["scored", "none", "none"]


def test_a_function_that_failed_voids_the_sum_and_one_that_has_nothing_to_say_does_not():
    """Left out of the sum, the part of the failed one would be a silent 0."""

    def second_fails(completions):
        return [0.5, "broken", None]

    with runner(functions.length, second_fails) as rewards:
        g = group("a", "b", "c")
        score(rewards, g)
    assert [rollout.reward for rollout in g.rollouts] == [1.5, None, 1.0]


def test_a_completion_is_right_when_the_verifier_says_so_whatever_shapes_its_reward():
    def mine(completions):
        return [0.0] * len(completions)

    def verdicts(*rewards):
        with runner(*rewards) as scoring:
            g = group("<answer>7</answer>", "#### 7", "8", answer="#### 7")
            score(scoring, g)
            return [rollout.correct for rollout in g.rollouts]

    assert verdicts("math", "format", mine)[1:] == [True, False], "right, in the wrong form"
    assert verdicts("format", mine) == verdicts("format") == [None, None, None], "a good form is no right answer"


def test_a_group_may_choose_its_rewards():
    with runner(functions.length, "math", "arithmetic") as rewards:
        g = group("#### 7", answer="#### 7", rewards=("math",))
        score(rewards, g)
        assert g.rollouts[0].rewards == {"math": 1.0}
        assert g.rollouts[0].statuses == {"math": "correct"}
        with pytest.raises(RewardError, match="test:0 is to be scored by cod; this run has length, math, arithmetic"):
            score(rewards, group("a", rewards=("cod",)))


def test_the_number_of_weights_is_checked():
    with pytest.raises(UsageError, match="1 reward_weights for 2 rewards"):
        runner("math", "arithmetic", weights=[1.0])


# -- processes over time -----------------------------------------------------------------------------------------------


def test_one_process_serves_several_event_loops_and_outlives_the_thread_that_called_first():
    groups = [group("a"), group("b")]
    with runner(functions.process_id) as rewards:
        thread = threading.Thread(target=score, args=(rewards, groups[0]))
        thread.start()
        thread.join()
        score(rewards, groups[1])
    assert values(groups[0], "process_id") == values(groups[1], "process_id") != [None]


def test_a_process_that_died_between_calls_is_started_anew():
    with runner(functions.process_id) as rewards:
        first, second = group("a"), group("b")
        score(rewards, first)
        process = int(values(first, "process_id")[0])
        psutil.Process(process).kill()
        # Its last thread's end, which its parent sees; the process looks like a zombie before.
        wait_until(lambda: os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT), "its end")
        score(rewards, second)
    assert statuses(second, "process_id") == ["scored"]
    assert values(first, "process_id") != values(second, "process_id")


def test_close_ends_a_call_in_progress_and_leaves_no_process(tmp_path):
    rewards = runner(functions.leaves_a_child)
    errors = []

    def call():
        with pytest.raises(RewardError) as error:
            score(rewards, group("a", pids=str(tmp_path / "pids")))
        errors.append(error.value)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until((tmp_path / "pids").exists, "the call")
    rewards.close()
    rewards.close()
    thread.join(PATIENCE)
    assert "leaves_a_child was called after its runner was closed" in str(errors[0])
    wait_until(lambda: not any(map(lives, map(int, (tmp_path / "pids").read_text().split()))), "its end")
    with pytest.raises(RewardError, match="closed"):
        score(rewards, group("a"))


# -- functions that fail -----------------------------------------------------------------------------------------------

FAILURES = {
    "raises": "ValueError: I cannot score this",
    "exits": "SystemExit: out of patience",
    "dies": "its process ended during a call: exit code 3",
    "hangs": "a call took longer than 3 s, so its process was killed",
    "holds_the_interpreter": "a call took longer than 3 s, so its process was killed",
    "too_few": "ValueError: it returned 1 scores for 2 completions",
    "endless": "ValueError: it returned 3 or more scores for 2 completions",
    "no_list": "TypeError: it returned a float, expected a list of 2 numbers or Nones",
    "closes_its_pipes": "its process ended during a call",
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """All failing functions at once: a group that they fail on, then one that they score."""
    log = tmp_path_factory.mktemp("rewards") / "rewards.log"
    bad, good = group("fine", "bad"), group("fine", "good")
    with runner(*(getattr(functions, name) for name in FAILURES), timeout=3.0, log_path=log) as rewards:
        asyncio.run(rewards.start())  # a busy machine must not fail the good calls
        score(rewards, bad)
        failed = {name: failures.count for name, failures in rewards.failures.items()}
        score(rewards, good)
        yield rewards, bad, good, failed


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_call_is_counted_and_the_next_one_scored(failing, name):
    rewards, bad, good, failed = failing
    assert statuses(bad, name) == ["infra_error", "infra_error"]
    assert values(bad, name) == [None, None]
    assert failed[name] == 2
    assert FAILURES[name] in rewards.failures[name].first
    assert FAILURES[name] in rewards.log_path.read_text()
    assert values(good, name) == [1.0, 1.0], rewards.failures[name]


def test_a_traceback_begins_in_the_users_file(failing):
    first = failing[0].failures["raises"].first.splitlines()
    assert first[0] == "Traceback (most recent call last):"
    assert "functions.py" in first[1]
    assert "raise ValueError" in first[2]


def test_a_traceback_of_a_shipped_function_shows_its_source():
    def shipped(completions):
        raise KeyError("lost")  # this very line

    with runner(shipped) as rewards:
        score(rewards, group("a"))
    assert __file__ in rewards.failures["shipped"].first
    assert "# this very line" in rewards.failures["shipped"].first


def test_a_hanging_function_takes_its_own_processes_along(tmp_path):
    with runner(functions.leaves_a_child, timeout=3.0) as rewards:
        asyncio.run(rewards.start())
        g = group("a", pids=str(tmp_path / "pids"))
        score(rewards, g)
        assert statuses(g, "leaves_a_child") == ["infra_error"]
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        wait_until(lambda: not any(map(lives, pids)), "the end of the process and its child")


def test_one_unusable_value_fails_for_its_completion_only():
    with runner(functions.mixed) as rewards:
        g = group(*"abcdefgh")
        score(rewards, g)
    assert values(g, "mixed") == [1.0, 2.0, None, None, None, None, 0.0, None]
    assert statuses(g, "mixed") == [
        "scored", "scored", "none", "infra_error", "infra_error", "infra_error", "format_error", "infra_error",
    ]  # fmt: skip
    assert rewards.failures["mixed"].count == 4
    assert "completion 3 scored nan, expected a finite number (4 of 8" in rewards.failures["mixed"].first


def test_a_missing_column_is_named():
    with runner(functions.wants_more) as rewards:
        g = group("a", answer=1)
        score(rewards, g)
    assert statuses(g, "wants_more") == ["infra_error"]
    assert rewards.failures["wants_more"].first == (
        "it asks for the argument difficulty; there are answer, prompts, completions, completion_ids"
    )


def test_a_column_that_cannot_be_sent_fails_only_the_functions_that_ask_for_it():
    def takes_all(completions, **columns):
        return [1.0] * len(completions)

    with runner(functions.length, takes_all) as rewards:
        g = group("a", lock=threading.Lock())
        score(rewards, g)
    assert g.rollouts[0].rewards == {"length": 1.0, "takes_all": None}
    assert "cannot be sent" in rewards.failures["takes_all"].first


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_of_this_name\ndef f(completions): return []", "No module named 'nothing_of_this_name'"),
        ("import sys\nsys.exit(4)\ndef f(completions): return []", "SystemExit: 4"),
        ("while True: pass\ndef f(completions): return []", "loading took longer than 2 s"),
        ("f = 5", "f is a int, not a function"),
    ],
)
def test_a_function_that_cannot_be_loaded_stops_the_start(tmp_path, source, message):
    (tmp_path / "r.py").write_text(source)
    with runner(f"{tmp_path}/r.py:f", load_timeout=2.0 if "while" in source else PATIENCE) as rewards:
        with pytest.raises(RewardError, match="reward function f cannot be loaded") as error:
            asyncio.run(rewards.start())
        g = group("a")
        score(rewards, g)  # without a start it is a failure like any other
    assert message in str(error.value)
    assert statuses(g, "f") == ["infra_error"]


def test_a_file_that_cannot_be_imported_shows_the_users_frames_only(tmp_path):
    (tmp_path / "near.py").write_text("def helper():\n    raise OSError('no such table')\n")
    (tmp_path / "r.py").write_text("import near\nTABLE = near.helper()\ndef f(completions): return []\n")
    with runner(f"{tmp_path}/r.py:f") as rewards, pytest.raises(RewardError) as error:
        asyncio.run(rewards.start())
    frames = [line for line in error.value.message.splitlines() if line.startswith("  File ")]
    assert [line.split('"')[1] for line in frames] == [f"{tmp_path}/r.py", f"{tmp_path}/near.py"]
    assert error.value.message.endswith("OSError: no such table")


def test_a_file_that_prints_when_it_is_imported_is_as_good_as_any(tmp_path):
    source = "import os\nprint('hello')\nos.write(1, b'from below\\n')\ndef f(completions): return [1.0] * len(completions)\n"
    (tmp_path / "r.py").write_text(source)
    with runner(f"{tmp_path}/r.py:f", log_path=tmp_path / "log") as rewards:
        score(rewards, g := group("a"))
    assert values(g, "f") == [1.0]
    assert (tmp_path / "log").read_text() == "hello\nfrom below\n"


@pytest.mark.parametrize("function", [functions.forks_and_exits_in_the_copy, functions.forks_and_goes_on_in_both])
def test_the_copy_of_a_function_that_forks_does_not_answer_for_it(function):
    """Two answers to one call would give the second one to the next call."""
    groups = [group("bad", *("x" * n)) for n in range(3)]
    with runner(function) as rewards:
        for g in groups:
            score(rewards, g)
    assert [len(g.rollouts) for g in groups] == [1, 2, 3]
    assert {value for g in groups for value in values(g, function.__name__)} == {1.0}, rewards.failures


def test_a_process_whose_memory_grows_is_started_anew_between_calls_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("postrl.rewards.calling.process.LARGEST_GROWTH", 50 << 20)
    groups = [group("a") for _ in range(7)]
    with runner(functions.keeps_everything, log_path=tmp_path / "log") as rewards:
        for g in groups:
            score(rewards, g)
        metrics = rewards.metrics(groups)
    processes = [g.rollouts[0].rewards["keeps_everything"] for g in groups]
    assert [processes.count(process) for process in dict.fromkeys(processes)] == [3, 3, 1]  # +30, +60: too much
    assert metrics["reward/keeps_everything/restarts"] == 2.0
    noted = [line for line in (tmp_path / "log").read_text().splitlines() if "grew by more than" in line]
    assert len(noted) == 1


# -- pools, steps, data sets -------------------------------------------------------------------------------------------


def test_groups_go_to_whichever_process_is_free(tmp_path):
    groups = [
        group("a", mine=str(tmp_path / "0"), other=str(tmp_path / "1")),
        group("b", mine=str(tmp_path / "1"), other=str(tmp_path / "0")),
    ]
    with runner(functions.waits_for_another_call, processes=2) as rewards:
        score(rewards, *groups)
    assert [values(g, "waits_for_another_call") for g in groups] == [[1.0], [1.0]], rewards.failures


def test_a_start_starts_every_process():
    def mine():
        return {process.pid for process in reward_processes_of(os.getpid()) if process.ppid() == os.getpid()}

    before = mine()
    with runner(functions.process_id, processes=3) as rewards:
        asyncio.run(rewards.start())
        assert len(mine() - before) == 3
    assert mine() <= before


def test_a_call_of_a_built_in_may_take_as_long_as_its_completions_may():
    rewards = runner("math", functions.length, timeout=60.0)
    limits = {
        name: [function.pool.timeout(count) for count in (1, 8, 100)] for name, function in rewards.functions.items()
    }
    assert limits == {"math": [60.0, 60.0, 510.0], "length": [60.0, 60.0, 60.0]}


def test_a_function_that_compares_is_called_once_a_step_and_built_ins_are_not():
    first, second = group("#### 1", "long #### 2", answer=1, tag="x"), group("a bit long", answer=7, tag="y")
    with runner(functions.compares, "math", batch="step") as rewards:

        async def step():
            await rewards.score(first)
            assert first.rollouts[0].rewards == {"math": 1.0}
            assert first.rollouts[0].reward == 1.0
            await rewards.score(second)
            await rewards.score_step([first, second])

        asyncio.run(step())
    assert values(first, "compares") + values(second, "compares") == [0.0, 2.0, 1.0], rewards.failures
    assert [r.reward for r in first.rollouts] == [1.0, 2.0]
    assert [r.reward for r in second.rollouts] == [1.0]


def test_a_column_that_a_group_lacks_is_none_there():
    groups = [group("a", answer=1, tag="x"), group("bb", answer=2), group("ccc", "dddd", answer=3, messages=CHAT)]
    inputs = as_inputs(*groups)
    assert inputs["tag"] == ["x", None, None, None]
    assert inputs["answer"] == [1, 2, 3, 3]
    assert inputs["prompts"] == ["What is 3 + 4?", "What is 3 + 4?", CHAT, CHAT]
    assert inputs["completions"][:3] == ["a", "bb", [{"role": "assistant", "content": "ccc"}]]


def test_rows_of_several_data_sets_are_each_scored_by_their_own_and_reported_so():
    words = group("#### 7", "#### 8", "?", answer="#### 7", rewards=("math",))
    sums = group("3+4=7", "8", answer=7, rewards=("arithmetic",))
    with runner("arithmetic", "math") as rewards:
        asyncio.run(rewards.score_all([words, sums]))
        metrics = rewards.metrics([words, sums])
    assert [r.reward for r in words.rollouts] == [1.0, 0.0, 0.0]
    assert [r.reward for r in sums.rollouts] == [1.0, 0.0]
    assert metrics["reward/arithmetic/mean"] == (1.0, 2.0)
    assert metrics["reward/math/mean"] == (1.0, 3.0)
    assert metrics["reward/math/status/no_answer"] == (1.0, 3.0)
    assert metrics["reward/arithmetic/latency_p99"] > 0 and metrics["reward/math/latency_p99"] > 0


def test_a_verifier_has_nothing_to_say_about_rows_of_another_kind():
    """`--reward math --reward arithmetic` on two data sets, one of them without an answer."""
    told, untold = group("#### 7", answer="#### 7"), group("7", tests=["assert f"])
    with runner("math", "arithmetic", functions.length) as rewards:
        asyncio.run(rewards.score_all([told, untold]))
    assert untold.rollouts[0].statuses == {
        "math": "gold_unscorable",
        "arithmetic": "gold_unscorable",
        "length": "scored",
    }
    assert [g.rollouts[0].reward for g in (told, untold)] == [1.0 + 6.0, 1.0]
    rewards.check_budget([told, untold], budget=0.0)


# -- options -----------------------------------------------------------------------------------------------------------


def with_args(*args, rewards, settings=None):
    specs = with_options([resolve(reward) for reward in rewards], args)
    return RewardRunner(specs, timeout=PATIENCE, settings=settings or {})


def test_options_are_constant_arguments():
    with with_args("level.scale=2.5", rewards=[functions.level]) as rewards:
        score(rewards, g := group("a", "b", answer=2))
    assert values(g, "level") == [5.0, 5.0], rewards.failures


def test_the_settings_of_the_run_are_what_options_of_built_ins_are_by_default():
    g = group(*"abcdefghij")  # the test's completions have 1, 2, ... tokens
    with with_args(
        "soft_overlong.cache=4", rewards=["soft_overlong"], settings={"max_completion_length": 10}
    ) as rewards:
        score(rewards, g)
    assert values(g, "soft_overlong") == [0.0] * 6 + [-0.25, -0.5, -0.75, -1.0]


def test_a_column_of_the_data_is_never_taken_for_an_option():
    g = group(*"abc", cache=3, max_completion_length=1, correct=True, answer=1)
    settings = {"max_completion_length": 100}
    with with_args(rewards=["soft_overlong", "cosine"], settings=settings) as rewards:
        score(rewards, g)
    assert values(g, "soft_overlong") == [0.0, 0.0, 0.0], rewards.failures
    assert statuses(g, "cosine") == ["no_answer"] * 3, rewards.failures


@pytest.mark.parametrize(
    ("arg", "reward", "found"),
    [
        ("soft_overlong.cash=4", "soft_overlong", "it has no option 'cash'; it has max_completion_length, cache"),
        ("level.scal=4", functions.level, "it has no option 'scal'; it has answer, scale"),
        ("length.x=4", functions.length, "it has no option 'x'; it has none"),
        ("soft_overlong.cache=400", "soft_overlong", "cache = 400, and max_completion_length = 10"),
        ("cosine.verifier=judge", "cosine", "there is no verifier 'judge'"),
    ],
)
def test_an_option_that_cannot_be_is_named_at_the_start(arg, reward, found):
    with with_args(arg, rewards=[reward], settings={"max_completion_length": 10}) as rewards:
        with pytest.raises(RewardError) as error:
            asyncio.run(rewards.start())
        assert found in error.value.message and "Traceback" not in error.value.message
        assert "--reward-arg" in error.value.hint


def test_an_option_that_is_needed_is_asked_for():
    with runner("soft_overlong") as rewards, pytest.raises(RewardError, match="needs the option max_completion_length"):
        asyncio.run(rewards.start())


# -- what functions log, and who they are ------------------------------------------------------------------------------


def test_columns_and_metrics_that_a_function_logs_go_to_rollouts_and_report():
    first, second = group("a", "bbb"), group("cc")
    with runner(functions.logs) as rewards:
        score(rewards, first, second)
        metrics = rewards.metrics([first, second])
        later = rewards.metrics([first])
    assert first.rollouts[1].extra["length"] == 3
    assert second.rollouts[0].extra["seen"] == {"text": "cc", "when": None}
    assert metrics["reward/logs/length"] == (6.0, 3.0)
    assert metrics["reward/logs/sometimes"] == (0.0, 0.0)
    assert "reward/logs/length" not in later


def test_a_mistake_in_what_it_logs_costs_no_score_and_is_named_once(tmp_path):
    groups = [group("a", "b"), group("c", "d")]
    with runner(functions.logs_badly, log_path=tmp_path / "log") as rewards:
        for g in groups:
            score(rewards, g)
        rewards.check_budget(groups, budget=0.0)
        metrics = rewards.metrics(groups)
    assert values(groups[1], "logs_badly") == [1.0, 1.0]
    assert metrics["reward/logs_badly/fine"] == (4.0, 2.0)
    assert metrics["reward/logs_badly/misused_logs"] == 8.0
    assert (tmp_path / "log").read_text().splitlines() == [
        "reward function logs_badly: log_extra('short') got 1 values for 2 completions",
        "reward function logs_badly: log_extra('single') got a int, expected 2 values",
        "reward function logs_badly: log_metric('words') got 'many' (str), expected a number",
        "reward function logs_badly: log_metric('mean'): the name is taken by a metric of every reward",
    ]


def test_what_an_evaluation_logs_is_not_the_next_steps():
    with runner(functions.logs) as rewards:
        score(rewards, group("a"))
        rewards.forget_logged()
        score(rewards, g := group("bb"))
        assert rewards.metrics([g])["reward/logs/length"] == (2.0, 1.0)


def test_what_calls_cost_is_added_up_over_the_run_with_its_evaluations():
    def paid(completions, log_metric):
        for _ in completions:
            log_metric("cost", 0.25)
        return [1.0] * len(completions)

    with runner(paid) as rewards:
        score(rewards, group("a", "b"))
        rewards.forget_logged()
        score(rewards, g := group("c"))
        found = rewards.metrics([g])
    assert (found["reward/paid/cost"], found["reward/paid/cost_total"]) == ((0.25, 1.0), 0.75)


def test_each_score_carries_the_version_of_what_gave_it(tmp_path):
    (tmp_path / "r.py").write_text("def f(completions, scale=1): return [1.0] * len(completions)\n")
    digest = hashlib.sha256((tmp_path / "r.py").read_bytes()).hexdigest()[:12]
    names = ["arithmetic", "cosine", f"{tmp_path}/r.py:f", functions.length]
    specs = with_options([resolve(name) for name in names], ["f.scale=2", "cosine.verifier=arithmetic"])
    with RewardRunner(specs, timeout=PATIENCE, settings={"max_completion_length": 9}) as rewards:
        score(rewards, g := group("7", answer=7))
    assert g.reward_versions["arithmetic"] == f"arithmetic, postrl {__version__}"
    assert g.reward_versions["cosine"] == f"shaping 1, arithmetic, postrl {__version__}, verifier=arithmetic"
    assert g.reward_versions["f"] == f"sha256 {digest}, scale=2"
    assert re.fullmatch("sha256 [0-9a-f]{12}", g.reward_versions["length"])


# -- budget and metrics ------------------------------------------------------------------------------------------------


def scored_by_hand(name, *scores):
    g = group(*("x" for _ in scores))
    for rollout, (value, status) in zip(g.rollouts, scores):
        rollout.rewards[name], rollout.statuses[name] = value, status
    return g


def test_failures_above_the_budget_stop_the_run_with_the_first_traceback():
    rewards = runner(functions.length, functions.raises)
    rewards.failures["raises"].first = "Traceback: the first"
    fine = scored_by_hand("length", *[(1.0, "scored")] * 4)
    failed = scored_by_hand("raises", (None, "infra_error"), (1.0, "scored"), (None, "none"), (None, "gold_unscorable"))
    rewards.check_budget([fine, failed], budget=0.25)
    with pytest.raises(RewardError, match=r"raises failed for 1 of 4 completions of this batch \(25%") as error:
        rewards.check_budget([fine, failed], budget=0.24)
    assert "Traceback: the first" in error.value.message
    assert "--reward-error-budget" in error.value.hint


def test_a_grader_that_timed_out_counts_and_a_candidate_that_did_does_not():
    rewards = runner("math")
    rewards.check_budget([scored_by_hand("math", (0.0, "timeout"))], budget=0.0)
    with pytest.raises(RewardError):
        rewards.check_budget([scored_by_hand("math", (None, "timeout"))], budget=0.0)


def test_metrics_are_sums_and_counts():
    with runner("math") as rewards:
        first, second = group("#### 7", "#### 8", "?", answer=7), group("#### 7", answer="")
        score(rewards, first, second)
        metrics = rewards.metrics([first, second])
        later = rewards.metrics([first])
    latency = metrics.pop("reward/math/latency_p99")
    assert isinstance(latency, float) and latency > 0
    assert metrics == {
        "reward/math/mean": (1.0, 3.0),
        "reward/math/status/correct": (1.0, 4.0),
        "reward/math/status/gold_unscorable": (1.0, 4.0),
        "reward/math/status/no_answer": (1.0, 4.0),
        "reward/math/status/wrong": (1.0, 4.0),
    }
    assert later["reward/math/status/gold_unscorable"] == (0.0, 3.0)


def test_a_function_is_called_in_another_process():
    with runner(functions.process_id) as rewards:
        g = group("a")
        score(rewards, g)
    assert values(g, "process_id") != [os.getpid()]


def needs_gold(completions, gold):
    return [1.0 if g is None else 2.0 for g in gold]


def test_a_column_that_no_row_of_a_data_set_has_is_missed_before_a_call_and_ragged_rows_get_none():
    def prompt(name, **columns):
        return Prompt(name, None, "?", [1], columns)

    with runner(needs_gold, "math") as rewards:
        asyncio.run(rewards.start())
        ragged = [prompt("b:0", gold=1), prompt("b:1")]
        rewards.check_columns(ragged)
        assert [p.columns for p in ragged] == [{"gold": 1}, {"gold": None}]
        with pytest.raises(UsageError, match="needs_gold asks for gold, and a has no such column; it has answer"):
            rewards.check_columns([*ragged, prompt("a:0", answer=5)])


@pytest.mark.parametrize("messages", [None, [{"role": "user", "content": "What is 3 + 4?"}]])
@pytest.mark.parametrize(
    ("end", "statuses_of"),
    [
        ("<think>\n", ["no_answer", "wrong", "correct"]),
        ("[THINK]", ["no_answer", "wrong", "correct"]),
        ("<think></think>", ["correct", "wrong", "correct"]),
        ("Think between <think> and </think>.", ["correct", "wrong", "correct"]),
    ],
)
def test_a_box_in_the_reasoning_that_the_prompt_has_opened_never_pays(messages, end, statuses_of):
    texts = [r"it is \boxed{7} and", r"\boxed{7}</think>so \boxed{8}", r"\boxed{8}</think>so \boxed{7}"]
    mine = replace(group(*texts, messages=messages, answer="7"), prompt=f"What is 3 + 4?{end}")
    with runner("math", sees_all) as rewards:
        score(rewards, mine)
    assert statuses(mine, "math") == statuses_of
    assert values(mine, "sees_all") == [float(len(text)) for text in texts]


def sees_all(completions):
    """What a function of the user's is given: the completion alone."""
    return [float(len(c if isinstance(c, str) else c[-1]["content"])) for c in completions]
