"""The settings as a script and its argument parser see them: fields of a dataclass, TRL's names beside ours.

`Settings` has the fields that postrl reads. The classes that scripts build have more of them, so that whatever reads a
dataclass (transformers' HfArgumentParser, TRL's TrlParser, `@dataclass` on a subclass) finds TRL's names too, and every field
has the default `Unset`: what a script or a parser leaves alone is known to be left alone, and may follow the algorithm.
"""

from __future__ import annotations

import argparse
import inspect
from dataclasses import Field, dataclass, field, fields
from pathlib import PurePath
from typing import Any, TypeVar

from postrl.config.python_hints import hints_in_python
from postrl.config.setting import default_of
from postrl.config.settings import Settings
from postrl.config.trl_names import TRLS
from postrl.config.values import from_text
from postrl.errors import UsageError

T = TypeVar("T")

COMPANIONS = frozenset(
    [
        "attn_implementation",
        "bnb_4bit_quant_storage",
        "bnb_4bit_quant_type",
        "chat_template_path",
        "dataset_config",
        "dataset_name",
        "dataset_streaming",
        "dataset_test_split",
        "dataset_train_split",
        "dtype",
        "ignore_bias_buffers",
        "load_in_4bit",
        "load_in_8bit",
        "lora_alpha",
        "lora_dropout",
        "lora_modules_to_save",
        "lora_r",
        "lora_target_modules",
        "lora_target_parameters",
        "lora_task_type",
        "model_name_or_path",
        "model_revision",
        "reward_funcs",
        "reward_model_name_or_path",
        "torch_dtype",
        "use_bnb_nested_quant",
        "use_dora",
        "use_peft",
        "use_rslora",
    ]
)
"""Fields of TRL's ModelConfig and ScriptArguments. One parser reads them beside GRPOConfig, and has each name once."""
SWITCHES = frozenset(
    [
        "average_tokens_across_devices",
        "dataloader_in_order",
        "dataloader_pin_memory",
        "ds3_gather_for_generation",
        "eval_do_concat_batches",
        "gradient_checkpointing",
        "log_multimodal",
        "log_on_each_node",
        "logging_nan_inf_filter",
        "shuffle",
        "shuffle_dataset",
        "skip_memory_metrics",
        "use_bias_correction_kl",
        "vllm_importance_sampling_correction",
        "whiten_advantages",
    ]
)
"""What is on by default, here or in TRL: a parser has a --no_NAME for it."""
OURS = {f.name: f for f in fields(Settings)}
THEIRS = tuple(sorted(TRLS - OURS.keys() - COMPANIONS))
"""TRL's names for which we have no field of that name."""


class Unset:
    """Stands where nothing was given; in a parser's help it reads as the default."""

    def __init__(self, default: Any = None) -> None:
        self.default = default

    def __repr__(self) -> str:
        return str(self.default)


class FromText:
    """Reads a flag's text as YAML would: a number, true, a list, else the text. Its type is checked with the settings."""

    def __new__(cls, text: str) -> Any:
        return from_text(text)


class Switch(argparse.Action):
    """`--shuffle`, `--shuffle false` and `--no_shuffle`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        off = (option_string or "").startswith(("--no_", "--no-"))
        setattr(namespace, self.dest, not values if off else values)


@dataclass
class AsGiven:
    """What was given, for those who read or change TRL's names later."""

    given_as: dict[str, Any] = field(default_factory=dict)


class Fields:
    """`__dataclass_fields__` of a class of settings. The class shows parsers, and `@dataclass` on a subclass, all that may be
    given; an object shows dataclasses.replace and asdict what holds its values."""

    def __init__(self, found: dict[str, Field[Any]]) -> None:
        self.of_class = {name: f for name, f in found.items() if name not in COMPANIONS}
        theirs = {name: f for name, f in found.items() if name not in THEIRS and name not in OURS}
        self.of_object = {f.name: f for f in (*OURS.values(), *fields(AsGiven), *theirs.values())}

    def __get__(self, instance: object, owner: type | None = None) -> dict[str, Field[Any]]:
        return self.of_class if instance is None else self.of_object


class SettingsType(type):
    """Class of the classes of settings. Their constructors take all names, also in a subclass, whatever its `__init__` is."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, Fields(value) if name == "__dataclass_fields__" else value)

    def __call__(cls, *args: Any, **values: Any) -> Any:
        """Build the settings; the only positional one is output_dir, as in TRL.

        Raises:
            UsageError: more positional arguments, unknown names or wrong values.
        """
        parameters = set(inspect.signature(cls.__init__).parameters) - {"self"}  # type: ignore[misc]
        if not parameters <= OURS.keys() | cls.__dataclass_fields__.keys():  # type: ignore[attr-defined]
            return super().__call__(*args, **values)  # an __init__ that somebody wrote
        if len(args) > 1 or not all(isinstance(arg, str | PurePath) for arg in args):
            raise UsageError(
                f"{cls.__name__} takes output_dir and settings by name, got {args[-1]!r}",
                hint=f"{cls.__name__}(output_dir=...)",
            )
        values |= dict(zip(("output_dir",), args, strict=False))
        hidden = parameters & COMPANIONS - values.keys()  # a subclass has them from Settings, with its defaults
        values |= dict.fromkeys(hidden, Unset())
        settings: Any = cls.__new__(cls)  # type: ignore[call-overload]
        settings.__dict__["_further"] = {name: values.pop(name) for name in values.keys() - parameters}
        with hints_in_python():
            settings.__init__(**values)
        return settings


def takes_trl_names(cls: type[T]) -> type[T]:
    """Class decorator: makes a dataclass whose fields are the settings and TRL's names, all of them `Unset`."""
    kinds = {name: _kind(f) for name, f in OURS.items()} | dict.fromkeys(THEIRS, FromText)
    cls.__annotations__ = {**cls.__annotations__, **kinds}
    for name, kind in kinds.items():
        setattr(cls, name, _field(name, kind))
    made = dataclass(kw_only=True)(cls)
    for name in kinds:
        delattr(made, name)  # what an object has not is read off Settings, or by its __getattr__
    return made


def _kind(f: Field[Any]) -> Any:
    """What a parser makes of the text of a flag."""
    if str(f.type).startswith("list["):
        return list[str]
    free = str(f.type).startswith("str") and f.name not in TRLS
    return str if free else FromText


def _field(name: str, kind: Any) -> Any:
    """A field for a parser, which hands all metadata to argparse."""
    ours = OURS.get(name)
    default = Unset(default_of(ours) if ours else None)
    text = ours.metadata["help"].replace("%", "%%") if ours else "TRL's name (docs/from_trl.md)."
    metadata: dict[str, Any] = {"default": default, "help": text}
    if kind is FromText:
        metadata |= {"nargs": "?", "const": True}
    if name in SWITCHES:
        metadata |= {"action": Switch, "aliases": [f"--no_{name}", f"--no-{name.replace('_', '-')}"]}
    return field(default=default, repr=ours is not None, compare=ours is not None, metadata=metadata)


def taken(settings: Any) -> dict[str, Any]:
    """The settings and TRL's names that were given to an object that is being built; of the latter nothing stays in it."""
    held = settings.__dict__
    found = {name: held.pop(name) for name in (*OURS, *THEIRS) if name in held} | held.pop("_further", {})
    return {name: value for name, value in found.items() if not isinstance(value, Unset)}
