"""What a user gets wrong ends in one clear message with a way out: exit code 1 or 2, no traceback, no process left."""

from __future__ import annotations

import re
import shutil

import psutil
import pytest

from e2e.runs import REWARDED, SMALL, Finished, small_disk

TWO_STEPS = ("--max-steps", "2")
FILES = {
    "rows.jsonl": '{"text": "1+1?", "answer": "2"}\n',
    "broken.py": 'raise ValueError("no API key in the environment")\ndef score(completions): ...\n',
    "judge.py": 'def judge(completions):\n    raise ConnectionError("the judge does not answer")\n',
    "unknown.yaml": "modle: tiny\n",
}


@pytest.fixture(scope="module")
def files(place):
    for name, text in FILES.items():
        (place.folder / name).write_text(text)
    (place.folder / "no-model").mkdir()


@pytest.fixture
def refused(place, files):
    """Runs a command that must be refused; its only output is `error: ...` and `hint: ...`."""

    def run(*args: str, code: int) -> str:
        finished = place.postrl("grpo", *args, "--output-dir", "refused")
        assert (finished.code, finished.out, finished.survivors) == (code, "", []), finished.err
        assert re.fullmatch(r"error: .*\nhint: .*\n", finished.err), finished.err
        assert not (place.folder / "refused").exists()
        return finished.err

    return run


# -- refused before anything starts ------------------------------------------------------------------------------------


def replaced(old: str, new: str, args=SMALL) -> tuple[str, ...]:
    return tuple(new if arg == old else arg for arg in args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (replaced("tiny", "./nowhere"), "there is no model folder ./nowhere"),
        (replaced("tiny", "no-model"), "the folder no-model holds no model: it has no config.json"),
        (replaced("tiny", "owner/name"), "the model owner/name is not a folder here and not cached, and the hub cannot be"),
        (replaced("arithmetic", "nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (replaced("arithmetic", "arithmetik"), "there is no data set arithmetik\nhint: did you mean arithmetic;"),
        (
            replaced("arithmetic", "owner/set", REWARDED),
            "owner/set is not cached on this machine, and the hub cannot be reached (offline)\n"
            "hint: give the rows as local files with --dataset-path FILE, or run once with network access\n",
        ),
        (
            replaced("arithmetic", "rows.jsonl", REWARDED),
            "rows has no column 'prompt'; it has text, answer\nhint: choose one with --prompt-column\n",
        ),
        ((*replaced("arithmetic", "rows.jsonl"), "--prompt-column", "text"), "no reward is given, and rows.jsonl has none of its own"),
        ((*SMALL, "--reward", "nowhere.py:score"), "reward nowhere.py:score: there is no file "),
        ((*SMALL, "--reward", "judge.py:jugde"), "did you mean judge?"),
        ((*SMALL, "--num-generations", "1"), "num_generations is 1: in algorithm = grpo a group of one has no baseline"),
        ((*SMALL, "--minibatches", "3"), "2 x 4 = 8 completions do not divide into minibatches = 3"),
        ((*SMALL, "--config", "unknown.yaml"), "unknown.yaml has no setting modle\nhint: did you mean model?"),
    ],
)  # fmt: skip
def test_refused_before_a_process_starts(refused, args, says):
    of_data = {"nowhere.jsonl", "arithmetik", "owner/set", "rows.jsonl"} & set(args) and "no reward" not in says
    assert says in refused(*args, code=1 if of_data else 2)


# -- found when the run begins -----------------------------------------------------------------------------------------

STARTED = {
    "too-long": (*SMALL, "--max-prompt-length", "2"),
    "broken-reward": (*SMALL, "--reward", "broken.py:score"),
    "failing-reward": (*SMALL, "--reward", "judge.py:judge"),
}


@pytest.fixture(scope="module")
def started(place, files, side_by_side):
    """Runs whose mistake shows only when data and rewards are loaded: name -> future."""
    return {
        name: side_by_side.submit(place.postrl, "grpo", *args, *TWO_STEPS, "--output-dir", f"bad-{name}")
        for name, args in STARTED.items()
    }


@pytest.fixture
def failed(started):
    """The error message of one of them, after the usual checks."""

    def message(name: str) -> str:
        finished: Finished = started[name].result()
        assert finished.code in (1, 2), finished.err
        assert (finished.out, finished.survivors) == ("", [])
        notes, error, rest = finished.err.partition("error: ")
        assert notes.startswith("starting the trainer; its log is ")
        assert "\nhint: " in rest
        assert "error: " not in rest.partition("\nhint: ")[2]
        return error + rest

    return message


@pytest.mark.slow
def test_prompts_that_are_all_too_long(failed):
    message = failed("too-long")
    assert message.startswith("error: no row of arithmetic is usable: 80 rows, 80 longer than max_prompt_length")
    assert "hint: raise --max-prompt-length" in message


@pytest.mark.slow
def test_a_reward_that_raises_when_it_is_imported_shows_where(place, failed):
    message = failed("broken-reward")
    assert message.startswith("error: reward function score cannot be loaded: ")
    assert f'File "{place.folder}/broken.py", line 1' in message
    assert "ValueError: no API key in the environment\nhint: " in message


@pytest.mark.slow
def test_a_reward_that_fails_beyond_the_budget_shows_its_first_traceback(place, failed):
    message = failed("failing-reward")
    assert message.startswith(
        "error: reward function judge failed for 8 of 8 completions of this batch (100%; reward_error_budget allows 5%). "
        f'Its first failure:\nTraceback (most recent call last):\n  File "{place.folder}/judge.py", line 2, in judge\n'
    )
    assert (
        "ConnectionError: the judge does not answer\nhint: fix the function, or raise --reward-error-budget" in message
    )


@pytest.mark.slow
def test_a_folder_in_which_nothing_was_trained_can_be_used_again(place, started):
    started["too-long"].result()
    finished = place.postrl("grpo", *SMALL, "--output-dir", "bad-too-long", "--dry-run")
    assert finished.code == 0, finished.err


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full_disk(place, whole, started):
    """The finished run, resumed where another checkpoint does not fit: on a small disk of its own where we may mount
    one, else under a limit on the size of a file, which is less than a checkpoint's."""
    shutil.copytree(place.folder / "whole", place.folder / "full" / "run")
    size = sum(4096 + path.stat().st_size for path in (place.folder / "full").rglob("*"))
    with small_disk(place.folder / "full", size + 500_000) as mounted:
        command = place.start("grpo", "--resume", "--output-dir", "full/run", "--max-steps", "8", "--save-steps", "1")
        if not mounted:
            command.process.rlimit(psutil.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        finished = command.wait()
        shutil.copytree(place.folder / "full" / "run", place.folder / "left")
    return finished, mounted


@pytest.mark.slow
def test_a_full_disk_while_saving_is_one_message(full_disk):
    finished, mounted = full_disk
    assert (finished.code, finished.out, finished.survivors) == (1, "", [])
    cause = "No space left on device" if mounted else ".+"
    assert re.search(
        rf"^error: checkpoint 7 could not be written to full/run/checkpoints: {cause}\n"
        r"hint: free space .*, then continue with --resume; earlier checkpoints are intact; continue from step_000006 with: .*$",
        finished.err,
        re.MULTILINE,
    ), finished.err
    assert "Traceback" not in finished.err


@pytest.mark.slow
def test_a_full_disk_costs_no_earlier_checkpoint_and_leaves_no_half_of_one(place, full_disk):
    left, before = place.folder / "left" / "checkpoints", place.folder / "whole" / "checkpoints"
    assert [path.name for path in left.iterdir()] == ["step_000006"]
    files = [path.relative_to(before) for path in before.rglob("*") if path.is_file()]
    assert [name for name in files if (left / name).read_bytes() != (before / name).read_bytes()] == []
