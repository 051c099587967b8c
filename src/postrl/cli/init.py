"""`postrl init`: a folder to start from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from postrl.cli.options import SettingsCommand
from postrl.cli.scoring import Debug
from postrl.errors import PostrlError, UsageError

HELP = """Make a folder NAME with a reward function, its test, a small data set and a config, ready to run.

\b
  reward   a reward function of your own                      (default)
  math     the built-in math reward and a bonus of your own
  code     the built-in code reward, on tests that come with the data
  judge    a language model as judge, over an OpenAI-compatible endpoint
"""

Template = Literal["reward", "math", "code", "judge"]
TEST, TRAIN = "postrl reward test --config config.yaml", "postrl grpo --config config.yaml"
NEXT = dict.fromkeys(("reward", "math", "code"), (TEST, TRAIN))
NEXT["judge"] = (f"python local_judge.py {TEST}", f"python local_judge.py {TRAIN}")
"""What to type next, inside the new folder."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def add_to(app: typer.Typer) -> None:
    app.command(
        name="init",
        cls=SettingsCommand,
        help=HELP,
        short_help="Make a folder with a reward, its test, data and a config.",
    )(init)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)],
    template: Annotated[
        Template, typer.Option("--template", metavar="reward|math|code|judge", help="What to start from.")
    ] = "reward",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    debug: Debug = False,
) -> None:
    for path in scaffold(name, template, force=force):
        typer.echo(f"wrote {path}")
    check, train = NEXT[template]
    typer.echo(f"\nnext:\n  cd {name} && {check}\n  {train}")


def scaffold(name: str, template: str, *, force: bool = False, here: Path | None = None) -> list[Path]:
    """Copy a template into the folder `name`; returns the files, as paths from `here`.

    Raises:
        UsageError: not the name of a folder, or files that would be overwritten.
        PostrlError: the folder cannot be written.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a folder",
            hint="use letters, digits, - _ and . (not first); the folder is made in the current one",
        )
    source, here = templates_folder() / template, here or Path()
    names = sorted(path.name for path in source.iterdir() if path.is_file())
    target = here / name
    if target.exists() and not target.is_dir():
        raise UsageError(f"{name} exists and is not a folder", hint="choose another name")
    if (there := [file for file in names if (target / file).exists()]) and not force:
        raise UsageError(
            f"{name} already has {', '.join(there)}", hint="choose another name, or overwrite them with --force"
        )
    try:
        target.mkdir(exist_ok=True)
        return [Path(shutil.copyfile(source / file, target / file)).relative_to(here) for file in names]
    except OSError as error:
        raise PostrlError(
            f"cannot write {error.filename or name}: {error.strerror or error}",
            hint="may you write here, is there room?",
        ) from error


def templates_folder() -> Path:
    """Where the templates are: in the installed package, or beside src/ in a checkout.

    Raises:
        PostrlError: the package was installed without them.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "templates", package.parents[1] / "templates"):
        if (folder / "reward").is_dir():
            return folder
    raise PostrlError("this installation has no templates", hint="install postrl again, as its README says")
