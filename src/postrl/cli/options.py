"""Command-line options from a settings dataclass: the field is the flag, the help text and the YAML key."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from postrl.algorithms.presets import OWNED, PRESETS, is_file
from postrl.algorithms.refused import flag
from postrl.cli.completion import completion_of
from postrl.config import GRPOConfig
from postrl.config.setting import ASYNC, RUN, default_of
from postrl.config.settings import Settings
from postrl.errors import UsageError
from postrl.run.folder import RunFolder

Run = Callable[..., int]
"""(settings, whether it is a dry run, and the command's further options by name) -> exit code."""


def settings_command(
    cls: type[GRPOConfig],
    run: Run,
    *,
    takes: Collection[str] | None = None,
    only_show: Any = None,
    further: Mapping[str, tuple[Any, Any]] | None = None,
    settings_of: str = "",
    algorithm: str = "grpo",
) -> Callable[..., None]:
    """A typer command with one option per field of `cls`, `--config FILE` and `--dry-run`.

    Args:
        run: called with the settings and whether it is a dry run; its result is the exit code.
        takes: the settings that mean something to it; default: all.
        only_show: the option that stands in for `--dry-run`.
        further: options that are not settings: name -> (type with its option, default).
        settings_of: name of the one among them that is the folder of a run whose settings are taken.
        algorithm: the one that is trained with unless --algorithm names another; its defaults are shown, and settings
            that mean nothing to it are not.
    """
    further = further or {}
    defaults = {
        **{f.name: default_of(f) for f in fields(Settings)},
        **cls.defaults_of(algorithm),
        "algorithm": algorithm,
    }

    def command(**values: Any) -> None:
        values.pop("help_all", None)
        context, config_file, dry_run = values.pop("context"), values.pop("config"), values.pop("dry_run")
        overlap = values.pop("overlap", False)
        others = {name: values.pop(name) for name in further}
        if config_file is None and others.get(settings_of):
            config_file = Path(others[settings_of]) / "config.yaml"
        given = {name: value for name, value in values.items() if _on_command_line(context, name)}
        if overlap and not given.setdefault("max_staleness", 1):
            raise UsageError("--async is short for --max-staleness 1, and --max-staleness is 0", hint="leave one out")
        raise typer.Exit(run(build_config(cls, given, config_file, algorithm), dry_run, **others))

    types = get_type_hints(Settings)
    parameters = [_parameter("context", typer.Context)]
    unread = OWNED - set(PRESETS[algorithm].reads or ()) - set(cls.defaults_of(algorithm))
    parameters += [
        _parameter(f.name, _option(f, types[f.name], defaults[f.name], hidden=f.name in unread), defaults[f.name])
        for f in fields(Settings)
        if takes is None or f.name in takes
    ]
    if takes is None or "max_staleness" in takes:
        parameters.append(_parameter("overlap", Annotated[bool, _ASYNC], False))
    parameters += [
        _parameter("config", Annotated[Path | None, _CONFIG], None),
        _parameter("dry_run", Annotated[bool, only_show or _DRY_RUN], False),
        *(_parameter(name, annotation, default) for name, (annotation, default) in further.items()),
        _parameter("help_all", Annotated[bool, _HELP_ALL], False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _help_all(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit()


HELP_ALL = "--help-all"
_HELP_ALL: Any = typer.Option(
    HELP_ALL,
    is_eager=True,
    expose_value=False,
    callback=_help_all,
    rich_help_panel=RUN,
    help="Show all settings, and exit.",
)
_CONFIG: Any = typer.Option("--config", metavar="FILE", rich_help_panel=RUN, help="YAML file with settings; flags win.")
_ASYNC: Any = typer.Option("--async", rich_help_panel=ASYNC, help="Short for --max-staleness 1.")
_DRY_RUN: Any = typer.Option("--dry-run", rich_help_panel=RUN, help="Print what would run, and stop.")


MOST_USED = "Most used"


class SettingsCommand(TyperCommand):
    """A command whose help lists its options panel by panel, in two columns that keep whole flags readable.

    One with `most_used` shows these first, and the others with --help-all. Underscores in flags are hyphens, and a flag
    that it does not have is answered with what to type instead.
    """

    most_used: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        context = {"token_normalize_func": hyphenated, **(kwargs.pop("context_settings", None) or {})}
        super().__init__(*args, context_settings=context, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from postrl.cli import unknown

        if not self.most_used:  # its help is short, and all of it
            args = ["--help" if arg == HELP_ALL else arg for arg in args]
        return unknown.explained(self, ctx, super().parse_args, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(option, record) for option in self.get_params(ctx) if (record := option.get_help_record(ctx))]
        panels: dict[str, list[tuple[str, str]]] = {}
        if self.most_used and not ctx.meta.get(HELP_ALL):
            rows = {option.opts[0]: (_left(option), record[1]) for option, record in shown}
            panels[MOST_USED] = [rows[name] for name in self.most_used]
            settings = len(rows) - len({HELP_ALL, "--help"} & rows.keys())
            panels[MOST_USED].append((HELP_ALL, f"Show all {settings} settings; docs/settings.md explains them too."))
        else:
            for option, record in shown:
                panels.setdefault(getattr(option, "rich_help_panel", None) or RUN, []).append(
                    (_left(option), record[1])
                )
        for panel, rows_of in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows_of, col_max=32)


def hyphenated(name: str) -> str:
    """`max_steps` as it is written in a flag."""
    return name.replace("_", "-")


def as_flags(name: str, value: Any) -> str:
    """A setting as it is written on the command line."""
    if isinstance(value, bool):
        return flag(name) if value else flag(name).replace("--", "--no-", 1)
    return " ".join(
        f"{flag(name)} {shlex.quote(str(item))}" for item in (value if isinstance(value, list) else [value])
    )


def _left(option: Any) -> str:
    """`--dataset TEXT`, `--[no-]shuffle`."""
    name = option.opts[0].replace("--", "--[no-]") if option.secondary_opts else option.opts[0]
    return f"{name} {option.metavar}" if option.metavar else name


def build_config(
    cls: type[GRPOConfig], given: dict[str, Any], config_file: Path | None = None, algorithm: str = "grpo"
) -> GRPOConfig:
    """Settings from a config file and the flags that were given, which win; what neither gives is `algorithm`'s.

    A run that is resumed takes its settings from its own folder, unless a config file is given. `--algorithm NAME` brings
    the defaults of NAME; one from a file keeps those of the command.

    Raises:
        UsageError: an unknown key, a wrong value, an impossible combination.
    """
    if config_file is None and given.get("resume") and given.get("output_dir"):
        folder = RunFolder(Path(given["output_dir"]).expanduser())
        folder.check_resumable()
        config_file = folder.config if folder.config.exists() else None
    if "model" in given and "adapter" not in given and (Path(given["model"]) / "adapter_config.json").exists():
        given = {**given, "adapter": None}  # of a file: --model names another one
    if algorithm != "grpo":
        given = {"algorithm": algorithm, **given}
    kept = cls.defaults_of(algorithm) if is_file(str(given.get("algorithm", ""))) else {}
    if config_file is None:
        return cls.from_dict({**kept, **given}, source="the command line")
    return cls.from_yaml(config_file, defaults=kept, **given)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _option(f: Field[Any], kind: Any, default: Any, *, hidden: bool) -> Any:
    names = [flag(f.name)]
    if bool in (kind, *get_args(kind)):
        names = [f"{flag(f.name)}/--no-{f.name.replace('_', '-')}"]
    shown = default != default_of(f) or not (default is None or isinstance(default, bool) or default in ("", []))
    option = typer.Option(
        *names,
        help=f.metadata["help"],
        rich_help_panel=f.metadata["panel"],
        metavar=_metavar(kind),
        show_default=shown,
        hidden=hidden,
        autocompletion=completion_of(f.name),
    )
    return Annotated[kind, option]


def _metavar(kind: Any) -> str | None:
    """How the value is called in the help: the choices where they fit in a line, or what kind of thing it is."""
    if literal := choices(kind):
        return listed if len(listed := "|".join(literal)) < 80 else "NAME"
    names = {bool: None, int: "N", float: "X", str: "TEXT"}
    parts = (kind, *get_args(kind))
    return next(names[part] for part in parts if part in names)


def choices(kind: Any) -> tuple[str, ...]:
    """The values of a field that has a choice of them; empty for others."""
    return next((get_args(part) for part in (kind, *get_args(kind)) if get_origin(part) is Literal), ())


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
