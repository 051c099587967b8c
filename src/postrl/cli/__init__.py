"""The command line: one file per command, thin; nothing heavy is imported before it is needed."""

# ruff: noqa: E402

from __future__ import annotations

from postrl.host.python import leave_working_folder

leave_working_folder()  # what is imported from here on is not the user's

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from postrl import errors
from postrl.cli import env, export, grpo, init, plan, processes, rescore, reward, serve, unknown
from postrl.cli.options import HELP_ALL
from postrl.errors import PostrlError, UsageError
from postrl.version import __version__


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """`postrl dr-grpo` is `postrl dr_grpo`."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, cmd_name.replace("-", "_"))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == [HELP_ALL]:
            args = ["--help"]
        return unknown.explained(self, ctx, super().parse_args, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"there is no command {args[0]}", hint=f"{meant}`{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="postrl",
    cls=_Commands,
    help="RL post-training of language models: vLLM rollouts, sharded trainers, verifiable rewards.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: flags are never cut, and it takes half the time
    context_settings={"max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"postrl {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for command in (grpo, plan, serve, export, init, reward, rescore, env, processes):
    command.add_to(app)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 failed, 2 usage, 130 interrupted. Tracebacks only with --debug."""
    if argv is None:
        from postrl.host import text

        text.restart_in_utf8()
        text.forgive_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(_run(args, debug="--debug" in args))
    finally:
        from postrl.console import let_go

        let_go()


def _run(args: list[str], *, debug: bool) -> int:
    from postrl import console

    errors.at_command_line = True
    try:
        app(args=args, prog_name="postrl")  # exits by itself unless something is raised
    except PostrlError as error:
        if debug:
            console.traceback()
        console.error(error.message, hint=error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            console.traceback()
        console.error(
            f"this is a bug in postrl: {type(error).__name__}: {error}",
            hint="the same command with --debug shows the traceback; please report it with the output of `postrl env`",
        )
        return 1
    finally:
        errors.at_command_line = False
    return 0
