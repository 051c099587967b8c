"""`postrl reward test`, `postrl reward audit` and `postrl rescore`, in this process."""

from __future__ import annotations

import asyncio
import json

import pytest

from postrl import cli
from postrl.config import GRPOConfig
from postrl.rewards import RewardRunner, resolve
from postrl.rollout.store import write_rollouts
from postrl.types import Group, Rollout

REWARDS = """
def has(completions, answer, **columns):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [1.0 if gold in text else 0.0 for gold, text in zip(answer, texts)]

def bad(completions):
    raise ValueError("I cannot score this")

def brief(completions):
    return [1.0 / len(c) for c in completions]

number = 7
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The current folder, with rewards and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"prompt": f"What is {n}+1?", "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def postrl(capfd):
    """`postrl("reward", "test")` -> (exit code, stdout, stderr), what workers print included."""

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            cli.main(list(args))
        return (ended.value.code, *capfd.readouterr())

    return run


# -- reward test -------------------------------------------------------------------------------------------------------


def test_made_up_completions_are_scored_and_shown(postrl):
    code, out, err = postrl("reward", "test", "rewards.py:has", "--dataset", "data.jsonl", "--rows", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["prompt", "completion", "from", "score", "time", "status"]
    assert len(lines) == 1 + 2 * 3
    assert [line.split("  ")[0] for line in lines[1::3]] == ["What is 0+1?", "What is 1+1?"]
    assert "wrong, boxed" in lines[3] and lines[3].endswith("scored")
    assert [line.split()[-4] for line in lines[1:4]] == ["1", "1", "0"]


def test_several_rewards_have_a_line_each_and_json_has_everything(postrl):
    code, out, _ = postrl(
        "reward", "test", "rewards.py:has", "arithmetic", "--dataset", "data.jsonl", "--rows", "1", "--json"
    )
    found = json.loads(out)
    assert (code, found["rewards"]) == (0, ["has", "arithmetic"])
    assert [(row["reward"], row["completion"], row["score"], row["status"]) for row in found["completions"]] == [
        ("has", "1", 1.0, "scored"),
        ("arithmetic", "1", 1.0, "correct"),
        ("has", "The answer is \\boxed{1}.", 1.0, "scored"),
        ("arithmetic", "The answer is \\boxed{1}.", 1.0, "correct"),
        ("has", "The answer is \\boxed{2}.", 0.0, "scored"),
        ("arithmetic", "The answer is \\boxed{2}.", 0.0, "wrong"),
    ]
    assert all(row["seconds"] >= 0 and not row["failed"] for row in found["completions"])


def test_the_data_sets_own_reward_is_the_default(postrl):
    code, out, _ = postrl("reward", "test", "--dataset", "arithmetic", "--rows", "1", "--json")
    assert (code, json.loads(out)["rewards"]) == (0, ["arithmetic"])


def test_settings_come_from_a_config_and_flags_win(postrl, place):
    (place / "c.yaml").write_text("dataset: [data.jsonl]\nreward: ['rewards.py:has']\nsystem_prompt: Be brief.\n")
    code, out, _ = postrl("reward", "test", "--config", "c.yaml", "--json", "--rows", "1")
    assert (code, json.loads(out)["rewards"]) == (0, ["has"])
    code, out, _ = postrl("reward", "test", "math", "--config", "c.yaml", "--json", "--rows", "1")
    assert (code, json.loads(out)["rewards"]) == (0, ["math"])


def test_completions_from_a_file_are_scored(postrl, place):
    (place / "c.jsonl").write_text('{"completion": "It is 1"}\n{"completions": ["3", "2"]}\n')
    code, out, _ = postrl(
        "reward", "test", "rewards.py:has", "--dataset", "data.jsonl", "--completions", "c.jsonl", "--json"
    )
    rows = json.loads(out)["completions"]
    assert code == 0
    assert [(row["completion"], row["from"], row["score"]) for row in rows] == [
        ("It is 1", "line 1", 1.0),
        ("3", "line 2", 0.0),
        ("2", "line 2", 1.0),
    ]


def test_a_failure_is_shown_with_its_traceback_and_exits_with_1(postrl):
    code, out, err = postrl("reward", "test", "rewards.py:bad", "--dataset", "data.jsonl", "--rows", "1")
    assert code == 1
    assert out.count("infra_error") == 3
    assert "error: reward bad failed for 3 completions; the first time:" in err
    assert "rewards.py" in err and 'raise ValueError("I cannot score this")' in err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("rewards.py:has",), 2, "no data set is given"),
        (("rewards.py:nothing", "--dataset", "data.jsonl"), 2, "has no function 'nothing'"),
        (("nowhere.py:f", "--dataset", "data.jsonl"), 2, "there is no file"),
        (("rewards.py:number", "--dataset", "data.jsonl"), 1, "not a function"),
        (("rewards.py:has", "--dataset", "none.jsonl"), 1, "none.jsonl does not exist"),
        (("--dataset", "data.jsonl"), 2, "no reward is given, and the data has none of its own"),
        (("rewards.py:has", "--dataset", "data.jsonl", "--completions", "none.jsonl"), 1, "none.jsonl does not exist"),
        (("rewards.py:has", "--run", "nowhere"), 2, "nowhere is not the folder of a run"),
        (("rewards.py:has", "--dataset", "data.jsonl", "--sample", "--run", "x"), 2, "from several places"),
        (("rewards.py:has", "--dataset", "data.jsonl", "--sample", "--model", "./none"), 2, "there is no model folder"),
        (("rewards.py:has", "--dataset", "data.jsonl", "--config", "none.yaml"), 2, "cannot read the config file"),
        (("rewards.py:has", "--dataset", "data.jsonl", "--reward-arg", "has"), 2, "reward_arg is 'has'"),
    ],
)
def test_a_wrong_call_is_one_message_with_a_hint(postrl, args, code, says):
    found, out, err = postrl("reward", "test", *args)
    assert (found, out) == (code, "")
    assert "error: " in err and says in err and "\nhint: " in err
    assert "Traceback" not in err or "rewards.py:number" in args


# -- reward audit ------------------------------------------------------------------------------------------------------

CASES = [
    {"id": "a", "kind": "plain", "gold": "42", "completion": "42", "expected": 1, "note": "happy path"},
    {"id": "b", "kind": "hack/negation", "gold": "42", "completion": "not 42", "expected": 0, "note": "denied"},
    {
        "id": "c",
        "kind": "gold/prose",
        "gold": "x",
        "completion": "x",
        "expected": None,
        "note": "no gold",
        "policy": "p",
    },
    {"id": "d", "kind": "number", "gold": "1000", "completion": "1,000", "expected": 1, "note": "thousands"},
    {"id": "e", "kind": "limit", "gold": "1", "completion": "1", "expected": 0, "note": "boom", "dangerous": True},
]


@pytest.fixture
def cases(place):
    (place / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in CASES))
    return "cases.jsonl"


def test_an_audit_reports_by_verdict_kind_and_id_and_exits_with_1(postrl, cases):
    code, out, err = postrl("reward", "audit", "rewards.py:has", "--cases", cases)
    assert (code, err) == (1, "")
    assert "accepted hack (1): a wrong completion got a reward" in out
    assert "refused right answer (1)" in out and "scored without a gold (1)" in out
    assert "hack/negation  b" in out and "denied" in out and "no gold (policy: p)" in out
    assert "rewards.py:has: 1 of 4 cases as expected; 1 dangerous ones left out" in out


def test_an_audit_as_json(postrl, cases):
    code, out, _ = postrl("reward", "audit", "rewards.py:has", "--cases", cases, "--dangerous", "--json")
    found = json.loads(out)
    assert (code, found["tried"], found["left_out"]) == (1, 5, 0)
    assert {row["id"]: row["verdict"] for row in found["differ"]} == {
        "b": "accepted hack",
        "c": "scored without a gold",
        "d": "refused right answer",
        "e": "accepted hack",
    }


def test_an_audit_without_a_difference_exits_with_0(postrl, place):
    (place / "one.jsonl").write_text(json.dumps(CASES[0]) + "\n")
    code, out, err = postrl("reward", "audit", "rewards.py:has", "--cases", "one.jsonl")
    assert (code, out, err) == (0, "rewards.py:has: 1 of 1 cases as expected\n", "")


def test_the_shipped_cases_are_chosen_by_the_arguments(postrl):
    code, out, _ = postrl("reward", "audit", "rewards.py:has", "--json")
    found = json.loads(out)
    assert (code, found["cases"]) == (1, "math")
    assert found["tried"] > 100
    verdicts = {row["verdict"] for row in found["differ"]}
    assert {"accepted hack", "refused right answer"} <= verdicts


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("rewards.py:brief",), 2, "name neither `answer` (math cases) nor `tests` (code cases)"),
        (("rewards.py:has", "--cases", "none.jsonl"), 1, "cannot read the cases none.jsonl"),
        (("rewards.py:has", "--cases", "data.jsonl"), 1, "data.jsonl, line 1: it has no id"),
        (("nothing",), 2, "there is no built-in reward 'nothing'"),
    ],
)
def test_a_wrong_audit_is_one_message_with_a_hint(postrl, args, code, says):
    found, out, err = postrl("reward", "audit", *args)
    assert (found, out) == (code, "")
    assert says in err and "\nhint: " in err and "Traceback" not in err


# -- rescore -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(place):
    """A run of one step, scored by `has`."""
    rollouts = [
        Rollout("data:0", i, [1], [2], [0.0], [], "stop", completion=text) for i, text in enumerate(["1", "2", "11"])
    ]
    group = Group("data:0", 0, "What is 0+1?", None, {"answer": "1"}, rollouts)
    config = GRPOConfig(model="m", dataset=["data.jsonl"], reward=["rewards.py:has"])
    (place / "run").mkdir()
    config.save(place / "run" / "config.yaml")
    with RewardRunner.for_run([resolve("rewards.py:has")], config) as runner:
        asyncio.run(runner.score_all([group]))
    write_rollouts(place / "run" / "rollouts", 1, "train", [group])
    return place / "run"


def test_a_runs_own_rewards_are_reproduced(postrl, run):
    code, out, err = postrl("rescore", "run")
    assert (code, err) == (0, "")
    assert "the run's rewards are reproduced exactly" in out
    assert "0 of 3 completions have another reward" in out


def test_a_function_that_has_changed_since_is_noticed(postrl, run, place):
    (place / "rewards.py").write_text(REWARDS.replace("else 0.0", "else 0.25"))
    code, out, _ = postrl("rescore", "run")
    assert code == 1
    assert "NOT reproduced: 1 completions have other scores or statuses" in out


def test_a_runs_completions_can_be_tried_with_its_own_and_with_other_rewards(postrl, run):
    for reward, status in (((), "scored"), (("arithmetic",), "correct")):
        code, out, _ = postrl("reward", "test", *reward, "--run", "run", "--json")
        rows = json.loads(out)["completions"]
        assert code == 0
        assert [(row["completion"], row["from"]) for row in rows] == [(text, "step 1") for text in ("1", "2", "11")]
        assert rows[0]["status"] == status


def test_another_reward_shows_means_statuses_and_the_largest_changes(postrl, run):
    code, out, err = postrl("rescore", "run", "--reward", "arithmetic", "--reward-weights", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines if line.startswith(("reward ", "has ", "arithmetic "))][:3] == [
        ["reward", "0.6667", "3", "0.6667", "3"],
        ["has", "0.6667", "3", "-", "-"],
        ["arithmetic", "-", "-", "0.3333", "3"],
    ]
    assert "2 of 3 completions have another reward" in out
    assert "1 of 1 groups: an advantage changes its sign" in out
    assert any(line.split()[-4:] == ["0", "scored", "->", "wrong"] for line in lines)
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "rollouts"]


def test_the_new_scores_are_written_where_asked(postrl, run, place):
    code, out, _ = postrl("rescore", "run", "--reward", "arithmetic", "--write")
    assert code == 0 and "wrote run/rescored/arithmetic.parquet" in out
    assert (run / "rescored" / "arithmetic.parquet").is_file()
    code, out, _ = postrl("rescore", "run", "--reward", "math", "--output", "there.parquet", "--json")
    found = json.loads(out)
    assert (code, found["output"], found["completions"]) == (0, "there.parquet", 3)
    assert (place / "there.parquet").is_file()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nowhere",), "nowhere is not the folder of a run"),
        (("run", "--reward", "nothing"), "there is no built-in reward 'nothing'"),
        (("run", "--reward-weights", "1"), "--reward-weights without --reward"),
        (
            ("run", "--reward", "math", "--reward-weights", "1", "--reward-weights", "2"),
            "2 reward_weights for 1 rewards",
        ),
        (("run", "--steps", "7"), "no rollouts of steps 7"),
        (("run", "--output", "run/rollouts/x.parquet"), "lies among the run's own rollouts"),
    ],
)
def test_a_wrong_rescore_is_one_message_with_a_hint(postrl, run, args, says):
    code, out, err = postrl("rescore", *args)
    assert (code, out) == (2, "")
    assert says in err and "\nhint: " in err and "Traceback" not in err
