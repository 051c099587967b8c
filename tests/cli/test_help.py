"""Help texts as snapshots, and what importing the command line loads.

After a wanted change: `POSTRL_UPDATE_SNAPSHOTS=1 python -m pytest tests/cli` writes them anew; read the diff.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from postrl import __version__
from postrl.algorithms.presets import OWNED, PRESETS
from postrl.algorithms.refused import flag
from postrl.cli.options import as_flags
from postrl.cli.presets_page import presets_page
from postrl.cli.settings_table import settings_table
from postrl.config.setting import PANELS
from postrl.config.settings import Settings

SNAPSHOTS = Path(__file__).parent / "snapshots"
PRESETS_PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
SETTINGS = Path(__file__).parents[2] / "docs" / "settings.md"
HEAVY = {"torch", "transformers", "vllm", "datasets", "accelerate", "peft", "pandas", "pyarrow", "numpy"}


COMMANDS = (
    (), ("grpo",), ("grpo", "--help-all"), ("serve",), ("serve", "--help-all"), ("plan", "--help-all"), ("init",), ("reward",), ("reward", "test"), ("reward", "audit"), ("rescore",), ("env",), ("plan",), ("export",), ("merge",),
)  # fmt: skip


@pytest.mark.parametrize("args", COMMANDS, ids=["-".join(("postrl", *args)) for args in COMMANDS])
def test_the_help_is_the_one_that_was_reviewed(postrl, args):
    shown = postrl(*args) if "--help-all" in args else postrl(*args, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    snapshot = SNAPSHOTS / ("-".join(("postrl", *args)) + ".txt")
    if os.environ.get("POSTRL_UPDATE_SNAPSHOTS") == "1":
        snapshot.write_text(shown.stdout)
    assert shown.stdout == snapshot.read_text()


def test_the_help_has_every_flag_whole_in_its_panel(postrl):
    with_critic = postrl("ppo", "--help-all").stdout
    panels = [with_critic.index(f"\n{panel}:\n") for panel in PANELS]
    assert panels == sorted(panels)
    shown = with_critic + "".join(postrl(name, "--help-all").stdout for name in ("grpo", "gspo", "cispo", "sapo"))
    for f in fields(Settings):
        name = flag(f.name)
        assert any(f"  {start}{end}" in shown for start in (name, "--[no-]" + name[2:]) for end in (" ", "\n")), name


@pytest.mark.parametrize("command", [*PRESETS, "serve", "plan", "rescore"])
def test_the_help_of_a_command_fits_a_screen_and_says_how_many_settings_there_are(postrl, command):
    shown = postrl(command, "--help").stdout.splitlines()
    assert len(shown) <= 50
    if command != "rescore":  # whose help is short, and all of it
        everything = postrl(command, "--help-all").stdout
        flags = len(re.findall(r"^  --\S+", everything, flags=re.MULTILINE)) - everything.count("  --help")
        assert any(f"Show all {flags} settings" in line for line in shown)
        assert "\nMost used:\n" not in everything


def test_what_is_most_used_comes_first(postrl):
    short = postrl("grpo", "--help").stdout
    names = re.findall(r"^  (--\S+)", short.partition("\nMost used:\n")[2], flags=re.MULTILINE)
    assert names == [
        "--model", "--dataset", "--reward", "--max-steps", "--learning-rate", "--num-generations", "--max-completion-length",
        "--lora-rank", "--output-dir", "--config", "--dry-run", "--help-all",
    ]  # fmt: skip


def test_a_command_whose_help_is_short_takes_help_all_too(postrl):
    assert postrl("rescore", "--help-all").stdout == postrl("rescore", "--help").stdout
    assert postrl("--help-all").stdout == postrl("--help").stdout


def test_no_line_of_the_help_is_wider_than_the_terminal(postrl):
    for args in set(COMMANDS) - {("serve",), ("serve", "--help-all")}:  # whose examples are longer
        assert max(len(line) for line in postrl(*args, "--help").stdout.splitlines()) <= 100, args


def test_without_a_command_the_help_is_shown(postrl):
    assert "grpo                   GRPO: Compare the completions of a prompt" in postrl().stderr + postrl().stdout


def test_the_processes_of_a_run_are_no_commands_for_people(postrl):
    shown = postrl("--help").stdout
    assert "learner" not in shown and "worker" not in shown
    assert postrl("learner", "--help").returncode == postrl("worker", "--help").returncode == 0


def test_the_version_is_shown(postrl):
    assert postrl("--version").stdout == f"postrl {__version__}\n"


COMPLETION = """
import os
os.environ.update(COMP_WORDS="postrl grpo --reward ", COMP_CWORD="3", _POSTRL_COMPLETE="complete_bash")
import postrl.cli as c
try: c.main([])
except SystemExit: pass
"""


@pytest.mark.parametrize(
    "program",
    [
        "import postrl.cli",
        "import postrl.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['grpo', '--help'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['grpo', '--model', 'm'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['reward', 'test', '--help'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['grpo', '--modle', 'm'])\nexcept SystemExit: pass",
        COMPLETION,
        "import postrl.cli as c\ntry: c.main(['init', '../x'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['rescore', 'nowhere'])\nexcept SystemExit: pass",
        "import postrl.cli as c\ntry: c.main(['plan', '--simulate', '--gpus', '2', '--steps', '1'])\nexcept SystemExit: pass",
    ],
    ids=[
        "import",
        "postrl --help",
        "grpo --help",
        "usage error",
        "reward test --help",
        "unknown flag",
        "completion",
        "init",
        "rescore",
        "plan",
    ],
)
def test_nothing_heavy_is_imported(program):
    check = f"{program}\nimport sys; print('loaded:', sorted(set(sys.modules) & {HEAVY!r}))"
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "loaded: []"


def test_env_shows_versions_to_paste_into_an_issue(postrl):
    shown = dict(line.strip().split(": ", 1) for line in postrl("env").stdout.splitlines() if ": " in line)
    assert shown["postrl"] == __version__
    assert shown["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "transformers", "vllm", "accelerate", "platform", "gpu"} <= shown.keys()
    assert shown["level"].partition(":")[0] in ("strict", "landlock", "basic")


def test_the_table_of_settings_in_the_docs_is_the_one_the_code_has():
    assert SETTINGS.read_text() == settings_table(), "run `python -m postrl.cli.settings_table > docs/settings.md`"


def test_the_page_of_algorithms_in_the_docs_is_the_one_the_table_gives():
    assert PRESETS_PAGE.read_text() == presets_page(), "run `python -m postrl.cli.presets_page > docs/presets.md`"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_algorithm_is_a_command_that_shows_its_own_defaults(postrl, preset):
    short, shown = (" ".join(postrl(preset.name, name).stdout.split()) for name in ("--help", "--help-all"))
    assert " ".join(preset.formula.split()) in short
    assert " ".join(preset.formula.split()) in shown
    for name, value in preset.settings.items():
        assert f" {as_flags(name, value)} " in shown
        assert isinstance(value, bool) or f"[default: {value}]" in shown
    for name in OWNED - set(preset.reads or ()) - preset.settings.keys():
        assert f" {flag(name)} " not in shown, f"{name} means nothing to {preset.name}"


def test_an_algorithm_may_be_written_with_hyphens(postrl):
    assert postrl("dr-grpo", "--help").returncode == 0
