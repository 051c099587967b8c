"""docs/presets.md from the table of algorithms: `python -m postrl.cli.presets_page > docs/presets.md`."""

from __future__ import annotations

import sys

from postrl.algorithms.presets import PRESETS, Preset
from postrl.algorithms.refused import flag
from postrl.cli.options import as_flags

HEAD = """# Algorithms

Generated from `postrl.algorithms.presets.PRESETS` by `python -m postrl.cli.presets_page`. Every algorithm is a command with
defaults of its own: `postrl dapo --epsilon-high 0.25`. `postrl grpo --algorithm dapo`
and, in a script, `GRPOConfig(algorithm="dapo")` are the same. [algorithms.md](algorithms.md) says exactly how advantages,
losses, KL and corrections are computed, and how to add an algorithm of your own. `--config RUN/config.yaml` of a run with
another algorithm gives what was chosen for it: what was only that algorithm's default gives way to the defaults here, and
its folder and name stay its own.

"""
NEEDS = {
    "values": "a critic: a second model with an optimizer of its own",
    "greedy": "one greedy completion more for each prompt",
}


def presets_page() -> str:
    """All algorithms as Markdown: a table of them, then a section each."""
    table = "| command | in one line |\n|---|---|\n"
    table += "".join(f"| [`postrl {row.name}`](#{row.name}) | {row.summary} |\n" for row in PRESETS.values())
    return HEAD + table + "".join(map(_section, PRESETS.values()))


def _section(preset: Preset) -> str:
    settings = ", ".join(f"`{as_flags(name, value)}`" for name, value in preset.settings.items())
    reads = ", ".join(f"`{flag(name)}`" for name in preset.reads or ())
    lines = [
        ("What it computes", preset.formula),
        ("When to use it", preset.when),
        *([("Mind", preset.note)] if preset.note else []),
        ("Command", f"`postrl {preset.name} --model Qwen/Qwen2.5-7B --dataset gsm8k`"),
        ("Defaults that differ from GRPO's", settings or "none"),
        ("Settings of its own", reads or "none"),
        ("Needs", ", ".join(_needs(preset)) or "nothing beyond the policy"),
        ("Optimizer steps per batch", "exactly one" if preset.one_update else "any number"),
        ("Source", preset.paper),
    ]
    title = f'\n<a id="{preset.name}"></a>\n\n## {preset.title}\n\n{preset.summary}\n\n'
    return title + "".join(f"- {name}: {text}{'' if text.endswith(('.', '`')) else '.'}\n" for name, text in lines)


def _needs(preset: Preset) -> list[str]:
    reference = ["the initial policy as reference (`--beta 0` does without)"] if preset.settings.get("beta") else []
    return [*(NEEDS[need] for need in sorted(preset.needs)), *reference]


if __name__ == "__main__":
    sys.stdout.write(presets_page())
