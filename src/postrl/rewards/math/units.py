"""Units behind a number: which words are the same unit, and what they measure.

Only conversions that are exact by definition. A word that is no unit of measure is a counted noun ("apples"), unless
it is of a class that counts nothing (`words.NO_NOUNS`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from postrl.rewards.math.words import FUNCTION_WORDS, GENERIC, NO_NOUNS, PARTS, POWERS, SCALES, is_plural, names

_MEASURES: dict[str, dict[str, Fraction | int]] = {
    "length": {
        "mm millimeter millimetre": Fraction(1, 1000), "cm centimeter centimetre": Fraction(1, 100),
        "m meter metre": 1, "km kilometer kilometre": 1000, "in inch inche": Fraction(254, 10_000),
        "ft foot feet": Fraction(3048, 10_000), "yd yard": Fraction(9144, 10_000), "mi mile": Fraction(1609344, 1000),
    },
    "mass": {
        "mg milligram": Fraction(1, 1000), "g gram": 1, "kg kilogram kilo": 1000, "lb pound": Fraction(45359237, 100_000),
        "oz ounce": Fraction(45359237, 1_600_000), "ton": 907_184, "tonne": 1_000_000,
    },
    "time": {
        "ms millisecond": Fraction(1, 1000), "s sec second": 1, "min minute": 60, "h hr hour": 3600, "day": 86_400,
        "week": 604_800, "month": 2_629_746, "year yr": 31_556_952,
    },
    "volume": {
        "ml milliliter millilitre": Fraction(1, 1000), "l liter litre": 1, "gallon gal": Fraction(3785411784, 10**9),
        "quart": Fraction(946352946, 10**9), "pint": Fraction(473176473, 10**9), "cup": Fraction(2365882365, 10**10),
        "tablespoon tbsp": Fraction(2365882365, 16 * 10**10), "teaspoon tsp": Fraction(2365882365, 48 * 10**10),
    },
    "money": {"¤ dollar usd buck": 1, "cent": Fraction(1, 100)},
    "pound sterling": {"£": 1},
    "euro": {"€ euro eur": 1},
    "yen": {"¥ yen": 1},
    "angle": {"° degree deg": 1, "arcminute": Fraction(1, 60), "arcsecond": Fraction(1, 3600)},
    "radian": {"rad radian": 1},
    "force": {"n newton": 1}, "energy": {"j joule": 1}, "power": {"w watt": 1}, "voltage": {"v volt": 1},
    "frequency": {"hz hertz": 1}, "celsius": {"°c celsius": 1}, "fahrenheit": {"°f fahrenheit": 1},
    "half day": {"am": 1}, "other half day": {"pm": 1},
}  # fmt: skip
_UNITS = {
    word: (measure, Fraction(factor))
    for measure, units in _MEASURES.items()
    for words, factor in units.items()
    for word in words.split()
}
_SPEEDS = {"mph": "mile per hour", "kph": "km per hour", "kmh": "km per hour", "kmph": "km per hour"}
_SHORT = re.compile(r"\b(?:mph|kph|kmh|kmph)\b")
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
KNOWN_WORDS = frozenset([*_UNITS, *_SPEEDS, *SCALES, *PARTS, *_POWERS, "degrees", "percent", "units", "unit"])
AMBIGUOUS = names("mg am pm ms mi")
"""Units that may as well be letters multiplied, where no text command says what they are."""
LETTERS = frozenset("mgshLlNJWV")
"""Units of one letter."""
LONGEST_PHRASE = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """What stands behind a number."""

    measures: tuple[tuple[str, int], ...]
    """Measures with their powers, sorted: (("length", 1), ("time", -1)) for km per hour; empty for counted nouns."""
    factor: Fraction
    """How much one of it is in the base units of these measures."""
    nouns: frozenset[str]
    plural: bool
    """Whether one of the nouns can stand behind a number other than one."""

    def agrees(self, other: Unit) -> bool:
        """Whether both can stand behind the same quantity."""
        if self.measures or other.measures:
            generic = not (self.measures and other.measures) and (self.nouns | other.nouns) & GENERIC
            return self.measures == other.measures or bool(generic)
        nouns, others = self.nouns - GENERIC, other.nouns - GENERIC
        return not nouns or not others or bool(nouns & others)


def read_unit(words: str) -> Unit | None:
    """The unit of a phrase such as "square cm", "km per h", "red apples"; None when it is no unit: "is wrong"."""
    phrase = _SHORT.sub(lambda match: _SPEEDS[match[0]], words).split()
    if len(phrase) > LONGEST_PHRASE or not _counts(phrase):
        return None
    powers: dict[str, int] = {}
    factor, nouns = Fraction(1), set()
    sign, waiting, last = 1, 1, ""
    for word in (word for i, word in enumerate(phrase) if word != "in" or i == len(phrase) - 1):  # 72 clips in total
        name, _, exponent = word.partition("^")
        if name in FUNCTION_WORDS:
            sign = -1 if name == "per" else sign
        elif name in _POWERS and not (name in POWERS and last):
            waiting = _POWERS[name]
        elif name in _POWERS:  # "metres squared"
            measure, unit = _UNITS[last]
            powers[measure] += _POWERS[name] - 1
            factor *= unit ** (_POWERS[name] - 1)
        elif found := _UNITS.get(name) or _UNITS.get(_singular(name)):
            power = sign * waiting * int(exponent or 1)
            if abs(power) > 9:
                return None
            powers[found[0]] = powers.get(found[0], 0) + power
            factor *= found[1] ** power
            waiting, last = 1, name if name in _UNITS else _singular(name)
        else:
            nouns.add(_singular(name))
    measures = tuple(sorted((measure, power) for measure, power in powers.items() if power))
    return Unit(measures, factor, frozenset(nouns), any(map(is_plural, phrase)))


def _counts(phrase: list[str]) -> bool:
    """Whether its words can be units and counted nouns: "squared" only behind a unit, no letter that is no unit."""
    for place, word in enumerate(phrase):
        if word in POWERS and place and phrase[place - 1].partition("^")[0] not in NO_NOUNS:
            continue
        if word in NO_NOUNS or (len(word) == 1 and word.isalpha() and word not in _UNITS and word != "a"):
            return False
    return True


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word
