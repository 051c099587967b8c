r"""Notations of the same thing, each rewritten to the one that the grammar knows. In this order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

Rule = tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]]
"""What a text must hold for the rule to be tried, what is rewritten, and to what."""

ROW = re.compile(r"\\\\\s*(?:\[[0-9.]+\s*[a-z]{2}\])?")


def rewritten(text: str, rules: tuple[Rule, ...]) -> str:
    for hint, pattern, replacement in rules:
        if hint in text:
            text = pattern.sub(replacement, text)
    return text


def _rows(match: re.Match[str]) -> str:
    """The lines of a system of equations as a list."""
    rows = (row.replace("&", " ").strip(" ,;.\n") for row in ROW.split(match["inside"]))
    return ", ".join(filter(None, rows))


def _direction(match: re.Match[str]) -> str:
    return rf"\vec{{{match[1] or match[2]}}} "


def _binomial(match: re.Match[str]) -> str:
    top, bottom = (group for group in match.groups() if group)
    return rf"\binom{{{top}}}{{{bottom}}}"


def _based(match: re.Match[str]) -> str:
    """101 "base" 2 as 101_{2}, (101)_2 as 101_2."""
    word = f'"{match[2]}"' if match[2] else match[3]
    return match[4] or f"{match[1]}_{{{word}}}"


def _interval(match: re.Match[str]) -> str:
    """]0, 1[ as (0, 1)."""
    opening, inside, closing = match.groups()
    return f"{'(' if opening == ']' else opening}{inside}{')' if closing == '[' else closing}"


def _half_day(match: re.Match[str]) -> str:
    minutes = f":{match[1]}" if match[1] else ""
    return f'{minutes} "{(match[2] or match[3]).lower()}m"'


def _set_of_numbers(match: re.Match[str]) -> str:
    return r"\reals " if match[1] == "R" else rf"\bb{match[1]} "


def _digit(match: re.Match[str]) -> str:
    return str(unicodedata.decimal(match[0]))


def _primes(match: re.Match[str]) -> str:
    return "'" * match[0].count("prime")


LATEX: tuple[Rule, ...] = (
    ("\\math", re.compile(r"\\math(?:bb|cal|scr|frak)\s*\{?\s*([A-Za-z])\s*\}?"), _set_of_numbers),  # \mathbb{R}
    (
        "{",
        re.compile(r"\\(?:hspace|vspace|phantom|hphantom|color|textcolor|label|tag)\*?\s*\{[^{}]*\}"),
        " ",
    ),  # \hspace{1cm}
    (
        "\\",
        re.compile(
            r"\\(?:hat|vec|bar|overrightarrow|widehat|mathbf|mathbf|boldsymbol|bm)\s*"
            r"(?:\{\s*(?:\\(?:vec|mathbf|boldsymbol|bm)\s*\{?\s*)?\\?([ijk])(?:math)?\s*\}\}?|\\?([ijk])(?:math)?(?![a-zA-Z]))"
        ),
        _direction,
    ),  # \hat{\imath}
    (
        "begin",
        re.compile(
            r"\\begin\s*\{\s*(aligned|align\*?|gathered|gather\*?|split|eqnarray\*?)\s*\}(?P<inside>.*?)\\end\s*\{\s*\1\s*\}",
            re.DOTALL,
        ),
        _rows,
    ),  # \begin{aligned}
    ("", re.compile(r"(?![0-9])\d"), _digit),  # digits of other scripts
    ("prime", re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![a-zA-Z]))"), _primes),  # f^{\prime}
    ("choose", re.compile(r"\{([^{}]*?)\\choose(?![a-zA-Z])([^{}]*?)\}"), r"\\binom{\1}{\2}"),  # {n \choose k}
    ("mathbf", re.compile(r"\\mathbf\s*\{\s*([RZQ])\s*\}"), _set_of_numbers),  # \mathbf{R}
    (
        "C",
        re.compile(
            r"(?:(?:\{\})?[\^_]\{?([0-9]+)\}?\s*)C_\{?([0-9]+)\}?(?![0-9^])|(?<![\w\\])C_\{?([0-9]+)\}?\^\{?([0-9]+)\}?(?![0-9])"
            r"|(?<![\w.])([0-9]+)\s?C\s?([0-9]+)(?!\w)"
        ),
        _binomial,
    ),  # 10C3, C_{10}^3
    (
        "begin",
        re.compile(r"\\begin\s*\{\s*d?cases\s*\}|(?:\\left\s*)?\\\{\s*\\begin\s*\{\s*array\s*\}\s*\{[clr|\s@{}]*?\}"),
        r" \\cases ",
    ),  # \begin{cases}
)
"""Before text commands are read."""
UNITS: tuple[Rule, ...] = (
    ("^", re.compile(r"\^\s*(?:\{\s*(?:\\circ|°|o)\s*\}|\\circ(?![a-zA-Z])|°)"), "°"),  # 60^\circ
    ("°", re.compile(r'°\s*"?([CF])\b"?'), r' "°\1" '),  # 20 °C
    ("p", re.compile(r'\s*(?:"(?:percent|pct|percentage)"|\b(?:percent|pct)\b)(?: points?)?'), "%"),  # percent
)
"""Once commands have become characters."""
SMALL: tuple[Rule, ...] = (
    ('".', re.compile(r'"(sq|cu|approx|hrs?|mins?|secs?|ft|in|yd|lbs?|oz)"\.'), r'"\1"'),  # sq. units
    (
        "xcept",
        re.compile(
            r'"?all"? (?:"?real"? )?(?:"?numbers?"?|"?reals"?) (?:"?[a-z]"? )?"?except"? (?:"?for"? )?(?!"?for)([^"]+)$',
            re.IGNORECASE,
        ),
        r"\\reals \\setminus \\{\1\\}",
    ),  # all real numbers except 1
    ('"to"', re.compile(r'(?<=[0-9]) ?"to" ?(?=[0-9])'), ":"),  # 3 to 4
    ("Omega", re.compile(r"(?<=[0-9}]) ?\\Omega(?![a-zA-Z])"), ' "ohm"'),  # 12 \Omega
    ("h", re.compile(r"^([0-9]+) ?h(?:rs?|ours?)? ?([0-9]+) ?m(?:ins?|inutes?)?$"), r'\1 "h" \2 "min"'),  # 1 h 20 min
    ("base", re.compile(r'_\{ *"base" *'), "_{"),  # 1101_{"base" 2}
    (
        "",
        re.compile(
            r'(?<![\w.])([0-9A-F]+)\s*\(?\s*"?base"?[\s-]*(?:"([a-z]+)"|\{?([0-9]+)\}?)\s*\)?|\(\s*([0-9A-F]+)\s*\)(?=_)'
        ),
        _based,
    ),  # 1101 "base" 2, (1101)_2
    (
        "",
        re.compile(r"(?:(?<![\w)}\]])|(?<=\\cup)|(?<=\\cap))([\[\](])([^\[\](){}]*[,;][^\[\](){}]*)([\[\])])(?![\w(])"),
        _interval,
    ),  # ]0, 1[
    ("/", re.compile(r"(?<=[0-9}]) ?m ?/ ?s(?![a-zA-Z])"), ' "m"/"s"'),  # 5 m/s
    (
        "m",
        re.compile(r'(?i)(?<=[0-9]):([0-9]{2})\s*"?([ap])"?\.?\s?"?m\b"?\.?"?|(?<=[0-9])\s*([ap])\.\s?m\.?(?![a-z])'),
        _half_day,
    ),  # 3:30 p.m.
)
"""In the small notation."""
