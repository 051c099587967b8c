"""The settings of a run: taken as they come (flags, YAML, TRL's names), checked, written down."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from postrl.algorithms.presets import PRESETS, Preset
from postrl.config import paths
from postrl.config.algorithm_file import load_preset
from postrl.config.checks import check
from postrl.config.script_fields import SettingsType, taken, takes_trl_names
from postrl.config.script_reads import ReadByScripts
from postrl.config.setting import default_of
from postrl.config.settings import Settings
from postrl.config.trl_names import convert, tell_unspoken
from postrl.config.values import as_typed, read_yaml


@takes_trl_names
class GRPOConfig(ReadByScripts, metaclass=SettingsType):
    """Settings of a run. Give a script's `GRPOTrainer` this as `args`; the command line builds it from flags.

    What is not given has the default of the `algorithm`. TRL's names are taken too; a `@dataclass` that inherits from it may
    have fields of its own, and HfArgumentParser and TrlParser make flags of all.
    """

    default_algorithm: ClassVar[str] = "grpo"

    def __post_init__(self) -> None:
        given = taken(self)
        as_given = given.pop("given_as", given)
        tell_unspoken(given, self.default_algorithm)
        for name, value in self.settled(given).items():
            setattr(self, name, value)
        check(self)
        self.given_as = as_given

    @classmethod
    def settled(cls, given: dict[str, Any]) -> dict[str, Any]:
        """All settings, where these were given, by our or TRL's names."""
        ours = convert(given, cls, source=cls.__name__)
        values = {**cls.defaults_of(ours["algorithm"]), **ours}
        typed = {f: as_typed(f, values.get(f.name, default_of(f)), cls.__name__) for f in fields(Settings)}
        return {f.name: paths.from_home(f, value) for f, value in typed.items()}

    @property
    def needs_greedy(self) -> bool:
        """Whether each prompt gets a greedy completion as well, as a baseline. Runs the file of an algorithm in a file."""
        preset = load_preset(self.algorithm)
        return "greedy" in (preset if isinstance(preset, Preset) else PRESETS[preset]).needs

    @staticmethod
    def defaults_of(algorithm: str) -> dict[str, Any]:
        """The settings that this algorithm has otherwise than GRPO."""
        return dict(PRESETS[algorithm].settings) if algorithm in PRESETS else {}

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, source: str = "the configuration") -> GRPOConfig:
        """Build from plain values.

        Raises:
            UsageError: an unknown key, a value of the wrong type, or an impossible combination.
        """
        known = {f.name: f for f in fields(Settings)}
        values = convert(values, cls, source=source)
        typed = {name: as_typed(known[name], value, source) for name, value in values.items()}
        config: GRPOConfig = type.__call__(cls, **typed)  # not as a script calls it: hints speak of flags
        return config

    @classmethod
    def from_yaml(cls, path: str | Path, defaults: dict[str, Any] | None = None, **overrides: Any) -> GRPOConfig:
        """Build from a YAML file; `overrides` (the command line) win, and `defaults` stand where it says nothing.

        What an earlier run of another algorithm has saved counts only where it differs from the defaults of that algorithm,
        and leaves it its folder and its name.
        """
        found = cls.settings_in(path, given=overrides)
        named = {name: value for name, value in overrides.items() if name == "algorithm"}
        if named and found.keys() >= {f.name for f in fields(Settings)} and found["algorithm"] != named["algorithm"]:
            usual = {**{f.name: default_of(f) for f in fields(Settings)}, **cls.defaults_of(found["algorithm"])}
            its_own = set() if overrides.get("resume") else {"output_dir", "run_name"}
            found = {name: v for name, v in found.items() if name not in its_own and v != usual[name]}
        values = convert({**found, **named}, cls, source=str(path))
        return cls.from_dict({**(defaults or {}), **values, **overrides}, source=str(path))

    @classmethod
    def settings_in(cls, path: str | Path, *, given: Collection[str] = ()) -> dict[str, Any]:
        """What a YAML file says, paths as the working folder has them: in the file they start from its folder. The settings
        of a run have that run's folder, wherever it lies now.

        Args:
            given: settings that come from elsewhere, and are not looked at.

        Raises:
            UsageError: it cannot be read, or a path is only right in the working folder.
        """
        path, found = Path(path), read_yaml(path)
        if path.name == "config.yaml" and any((path.parent / "checkpoints").glob("step_*")):
            found["output_dir"] = "."
        known = {f.name: f for f in fields(Settings) if f.name not in given}
        return {
            name: paths.beside(known[name], value, path) if name in known else value for name, value in found.items()
        }

    def save(self, path: str | Path) -> None:
        """Write the settings to a YAML file that means the same in any working folder."""
        import yaml

        text = yaml.safe_dump(self.lasting(Path(path).parent), sort_keys=False, allow_unicode=True)
        Path(path).write_text(text, encoding="utf-8")

    def lasting(self, folder: Path) -> dict[str, Any]:
        """The settings as they are written into `folder`: see `paths.lasting`."""
        return {f.name: paths.lasting(f, getattr(self, f.name), folder) for f in fields(Settings)}


class PPOConfig(GRPOConfig):
    """`GRPOConfig` whose default algorithm is ppo, for `PPOTrainer`."""

    default_algorithm = "ppo"


class RLOOConfig(GRPOConfig):
    """`GRPOConfig` whose default algorithm is rloo, for `RLOOTrainer`."""

    default_algorithm = "rloo"
