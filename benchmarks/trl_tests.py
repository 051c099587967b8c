"""TRL's own tests of GRPOTrainer and RLOOTrainer, with the import swapped and nothing else.

    pip install 'trl==1.16.0'
    git clone https://github.com/huggingface/trl ../trl
    python benchmarks/trl_tests.py ../trl                          # with TRL, then with postrl those that TRL passes
    python benchmarks/trl_tests.py ../trl --with postrl            # with postrl alone: again after a change
    python benchmarks/trl_tests.py ../trl -k "loss or reward"      # some of them

The tests are read from the checkout that you give and are no part of this repository. They want models and data of the hub:
`trl_stand_ins.py` makes small ones, so nothing is downloaded; tests of vision models, of vLLM and those marked slow are left
out. What TRL itself does not pass on this machine does not count. Each result is kept in --work as it comes, and a test that
has one is not run again: an hour or two on two cores may be taken in parts. `--with postrl` forgets those of postrl.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from trl_stand_ins import make_hub, results

FILES = {"grpo": "test_grpo_trainer.py", "rloo": "test_rloo_trainer.py"}
SUPPORT = ("__init__.py", "conftest.py", "testing_utils.py", "testing_constants.py")
IMPORT = re.compile(r"^from trl import (\w+Config), (\w+Trainer)$", re.MULTILINE)
LEFT_OUT = "not VLM and not Slow and not vllm"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of github.com/huggingface/trl")
    parser.add_argument("--files", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--with", dest="libraries", nargs="+", default=["trl", "postrl"], choices=["trl", "postrl"])
    parser.add_argument("-k", default="", help="as pytest takes it")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "postrl-trl-tests")
    args = parser.parse_args()
    for problem in make_hub(args.work / "hub"):
        print(f"no stand-in: {problem}")
    chosen = f"({LEFT_OUT}) and ({args.k})" if args.k else LEFT_OUT
    for which in args.files:
        if args.libraries == ["postrl"]:
            result_file(args.work, "postrl", which).unlink(missing_ok=True)
        for library in args.libraries:
            run(args.checkout, args.work, which, library, chosen)
        show(args.work, which)


def result_file(work: Path, library: str, which: str) -> Path:
    return work / f"{library}-{which}.jsonl"


def run(checkout: Path, work: Path, which: str, library: str, chosen: str) -> None:
    """Run the tests of one file that have no result; with postrl those that TRL passes."""
    folder = work / f"{library}-{which}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tests").mkdir(parents=True)
    for name in (FILES[which], *SUPPORT):
        source = checkout / "tests" / name
        text = source.read_text(encoding="utf-8") if source.exists() else ""
        (folder / "tests" / name).write_text(IMPORT.sub(rf"from {library} import \1, \2", text), encoding="utf-8")
    environment = {
        **os.environ,
        "HF_HUB_CACHE": str(work / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "TRL_TESTS_RESULTS": str(result_file(work, library, which)),
    }
    if library != "trl":
        passed = [
            test for test, (outcome, _) in results(result_file(work, "trl", which)).items() if outcome == "passed"
        ]
        (folder / "only.json").write_text(json.dumps(passed), encoding="utf-8")
        environment["TRL_TESTS_ONLY"] = str(folder / "only.json")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "trl_stand_ins", "-p", "no:cacheprovider", "--rootdir", "."]
    command += [f"tests/{FILES[which]}", "--tb=short", "-k", chosen]
    subprocess.run(command, cwd=folder, env=environment, check=False)


def show(work: Path, which: str) -> None:
    theirs, ours = (results(result_file(work, library, which)) for library in ("trl", "postrl"))
    passed = [test for test, (outcome, _) in theirs.items() if outcome == "passed"]
    right = [test for test in passed if ours.get(test, ("",))[0] == "passed"]
    print(
        f"\n{which}: of {len(passed)} that TRL passes here, postrl passes {len(right)} of the {len(ours)} that were run"
    )
    wrong = {test: problem for test, (outcome, problem) in ours.items() if outcome == "failed"}
    for problem, count in Counter(text.splitlines()[0][:160] for text in wrong.values() if text).most_common():
        print(f"{count:4}  {problem}")


if __name__ == "__main__":
    main()
