"""`postrl reward`: look at a reward before a model does."""

from __future__ import annotations

import typer

from postrl.cli import reward_audit, reward_test
from postrl.cli.options import SettingsCommand


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        name="reward",
        help="Score completions, and try hostile ones, before training.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for name, module, short in (
        ("test", reward_test, "Score completions without training."),
        ("audit", reward_audit, "Try hostile completions."),
    ):
        group.command(name=name, cls=SettingsCommand, help=module.HELP, short_help=short)(module.run)
    app.add_typer(group)
