"""Which rows of the data can be scored: found before anything is sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from postrl.errors import DataError
from postrl.rewards.builtin import BUILTINS, VERIFIERS
from postrl.rewards.declared import GIVEN
from postrl.rewards.registry import RewardSpec
from postrl.types import Prompt


def scorable_rows(prompts: Sequence[Prompt], specs: Sequence[RewardSpec]) -> tuple[list[Prompt], list[str]]:
    """The prompts that the rewards of the run can score, and the ids of the others.

    A row stays when a verifier that scores it accepts its columns (rows of several data sets may each have their own),
    or when a function of the user's scores it, which may do so in its own way. What only shapes does not make a row
    usable where there is a verifier.

    Raises:
        DataError: nothing is left of one of the data sets.
    """
    users = {spec.name for spec in specs if spec.kind != "builtin"}
    checks = {spec.name: check for spec in specs if (check := _check_of(spec)) is not None}
    every = tuple(spec.name for spec in specs)

    def usable(prompt: Prompt) -> bool:
        names = prompt.rewards or every
        verifiers = [checks[name] for name in names if name in checks]
        return not verifiers or not users.isdisjoint(names) or any(check(prompt.columns) for check in verifiers)

    kept: list[Prompt] = []
    left_out: list[Prompt] = []
    for prompt in prompts:
        (kept if usable(prompt) else left_out).append(prompt)
    gone = {_data_set(prompt) for prompt in left_out} - {_data_set(prompt) for prompt in kept}
    if gone:
        first = next(prompt for prompt in left_out if _data_set(prompt) in gone)
        scorers = " or ".join(name for name in first.rewards or every if name in checks)
        raise DataError(
            f"no row of {', '.join(sorted(gone))} can be scored by {scorers}; {first.prompt_id} has {_shown(first.columns)}",
            hint="math and arithmetic compare with the column answer (--answer-column chooses another), code runs the column "
            "tests of the kind test_type; or choose another --reward",
        )
    return kept, [prompt.prompt_id for prompt in left_out]


def why_left_out(prompts: Sequence[Prompt], ids: Sequence[str], specs: Sequence[RewardSpec]) -> str:
    """One line for people on the rows with these ids: what kinds of golds they have, the most frequent first; "" where
    no verifier says so."""
    reasons = [
        (spec.name, why) for spec in specs if spec.kind == "builtin" and (why := BUILTINS[str(spec.payload)].why)
    ]
    gone = set(ids)
    counts: Counter[str] = Counter()
    for prompt in prompts:
        if prompt.prompt_id in gone:
            counts.update(why(prompt.columns) for name, why in reasons if name in (prompt.rewards or (name,)))
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common() if kind)
    return f"golds that cannot be scored: {kinds}" if kinds else ""


def hidden_columns(prompts: Sequence[Prompt]) -> str:
    """One line for people on columns that no reward can be given, because every call fills arguments of these names
    itself; "" where there are none."""
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name in GIVEN)
    if not names:
        return ""
    are = "columns {} are" if len(names) > 1 else "column {} is"
    return f"{are.format(', '.join(names))} not given to rewards, whose arguments of that name hold what is sampled: rename to use"


def rows_by_data(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """The prompts of each data set, by its name."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(_data_set(prompt), []).append(prompt)
    return found


def _check_of(spec: RewardSpec) -> Callable[[dict[str, Any]], bool] | None:
    """What says whether a verifier can score a row; `cosine` has one of its own."""
    if spec.kind != "builtin":
        return None
    verifier = spec.options.get("verifier")
    return BUILTINS[verifier if verifier in VERIFIERS else str(spec.payload)].scorable


def _data_set(prompt: Prompt) -> str:
    return prompt.prompt_id.rpartition(":")[0]


def _shown(columns: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r:.60}" for name, value in columns.items()) or "no column but the prompt"
