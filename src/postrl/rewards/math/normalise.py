"""One way to write things: LaTeX and Unicode in the many ways that models write them, as a plain small notation.

    tidy(r"$\\dfrac{1}{2}\\text{ cm}$")  ->  r'\\frac{1}{2} "cm"'

Text commands leave their words in double quotes, `\\$` becomes a currency sign, operators become one character or
two. Nothing is evaluated. Only for texts of at most LONGEST_ANSWER characters.
"""

from __future__ import annotations

import re
from functools import lru_cache

from postrl.rewards.math.notations import LATEX, ROW, SMALL, UNITS, rewritten
from postrl.rewards.math.tokens import FUNCTIONS
from postrl.rewards.math.words import PHRASES

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⁄": "/", "∕": "/",
        "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": "<=", "≥": ">=", "⩽": "<=", "⩾": ">=", "≠": "!=",
        "≈": "≈", "°": "°", "º": "°", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": "∈",
        "∅": r"\emptyset ", "…": r"\ldots ", "⋯": r"\ldots ", "ℝ": r"\reals ", "∖": r"\setminus ",
        "½": r"\frac12 ", "⅓": r"\frac13 ", "⅔": r"\frac23 ", "¼": r"\frac14 ", "¾": r"\frac34 ",
        "⅕": r"\frac15 ", "⅛": r"\frac18 ", "⟨": r"\langle ", "⟩": r"\rangle ", "％": "%", "：": ":", "，": ",",
        "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ", "λ": r"\lambda ",
        "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "⇒": r"\Rightarrow ", "→": r"\to ", "∀": r"\forall ", "∴": " ", "ℤ": r"\bbZ ", "ℕ": r"\bbN ", "ℚ": r"\bbQ ",
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width
        "“": " ", "”": " ", '"': " ", "’": "'", "‘": "'", "′": "'", "＝": "=", "（": "(", "）": ")", "\u200b": "",
    }
)  # fmt: skip
_SUPERSCRIPTS = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")

_BLANK = " "
_COMMANDS = {
    **dict.fromkeys((r"\(", r"\)", r"\[", r"\]", r"\,", r"\;", r"\:", r"\ ", r"\quad", r"\qquad", "\\\n"), _BLANK),
    **dict.fromkeys((r"\!", r"\left", r"\right", r"\mleft", r"\mright", r"\middle", r"\limits", r"\nolimits"), ""),
    **dict.fromkeys((r"\big", r"\Big", r"\bigg", r"\Bigg", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\biggl"), ""),
    **dict.fromkeys((r"\biggr", r"\Biggl", r"\Biggr", r"\displaystyle", r"\textstyle", r"\boxed", r"\fbox"), _BLANK),
    **dict.fromkeys((r"\scriptstyle", r"\ensuremath", r"\it", r"\bf", r"\rm", r"\therefore"), _BLANK),
    **dict.fromkeys((r"\large", r"\Large", r"\huge", r"\small", r"\blacksquare", r"\square", r"\qed"), _BLANK),
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac"), r"\frac"),
    **dict.fromkeys((r"\dbinom", r"\tbinom"), r"\binom"),
    **dict.fromkeys((r"\cdot", r"\times", r"\ast", r"\bullet"), "*"),
    **dict.fromkeys((r"\le", r"\leq", r"\leqslant", r"\leqq"), "<="),
    **dict.fromkeys((r"\ge", r"\geq", r"\geqslant", r"\geqq"), ">="),
    **dict.fromkeys((r"\ne", r"\neq"), "!="),
    **dict.fromkeys((r"\approx", r"\simeq", r"\thickapprox"), "≈"),
    **dict.fromkeys((r"\dots", r"\cdots", r"\ldots", r"\dotsc", r"\dotsb"), r"\ldots "),
    **dict.fromkeys((r"\emptyset", r"\varnothing"), r"\emptyset "),
    **dict.fromkeys((r"\degree", r"\textdegree"), "°"),
    **dict.fromkeys((r"\lor", r"\vee"), ' "or" '),
    **dict.fromkeys((r"\land", r"\wedge"), ' "and" '),
    **dict.fromkeys((r"\mid", r"\vert", r"\lvert", r"\rvert"), "|"),
    **dict.fromkeys((r"\lbrace",), r"\{"),
    **dict.fromkeys((r"\rbrace",), r"\}"),
    **dict.fromkeys((r"\lbrack",), "["),
    **dict.fromkeys((r"\rbrack",), "]"),
    **dict.fromkeys((r"\backslash", r"\smallsetminus"), r"\setminus "),
    **dict.fromkeys((r"\varphi",), r"\phi"),
    **dict.fromkeys((r"\varepsilon",), r"\epsilon"),
    **dict.fromkeys((r"\vartheta",), r"\theta"),
    r"\lt": "<", r"\gt": ">", r"\in": "∈", r"\div": "/", r"\colon": ":", r"\%": "%", r"\$": "¤", r"\&": "&",
    r"\forall": ' "for" "all" ', r"\|": "|", r"\#": "#", r"\_": "_", r"\pounds": "£", r"\euro": "€", r"\yen": "¥", r"\cent": '"cent"',
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)

_THIN = r"(?:\{,\}|,?\\!|\\[,;: ]|\\thinspace)\s?"  # but `12,\,102` is a list
_THIN_THOUSANDS = re.compile(rf"(?<![0-9.,])[0-9]{{1,3}}(?:{_THIN}[0-9]{{3}})+(?![0-9])")
_COMMA_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_BLANK_THOUSANDS = re.compile(r"(?<![0-9.,/] )(?<![0-9.,/])[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9/])")
_TEXT = re.compile(
    r"\\(?P<name>text[a-z]*|mbox|hbox|math(?:rm|bf|it|sf|tt)|operatorname\*?|emph|underline|bold|boldsymbol|bm|pmb)"
    r"\s*\{(?P<inside>(?:[^{}]|[\^_]\{[^{}]*\})*)\}"
)
_LETTERS = re.compile(r"[A-Za-z][A-Za-z'-]*(?:\.(?=[A-Za-z]))?(?:[A-Za-z]\.)*")
_MATRIX = re.compile(r"\\begin\s*\{\s*(?:[pbB]?matrix\*?|smallmatrix|array)\s*\}(?:\s*(?:\{[clr|\s]*\}|\[[clr]\]))?")
_DETERMINANT = re.compile(r"\\begin\s*\{[vV]matrix\}")
_SPOKEN = frozenset({"cis", "sin", "cos", "tan", "cot", "ln", "log", "arcsin", "arccos", "arctan"})
_END = re.compile(r"\\end\s*\{\s*[a-zA-Z]*\*?\s*\}")
_ORDINAL = re.compile(r'(?<=[0-9]) ?(?:\^ ?)?(?:\{ ?)?"?(?:st|nd|rd|th)"?(?: ?\})?(?![a-zA-Z])')
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_REPEATING = re.compile(r"([0-9]*\.[0-9]*)\s*\\(?:overline|bar|dot|overbar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))(?![0-9])")
_DOTTED = re.compile(r"([0-9]*\.)([0-9]+)\s*(?:\\ldots|\.\.\.)")
_UNITS_OF_ONE_LETTER = frozenset("mgshLlNJWVAKCF")


_LEADING = re.compile(
    r"^(?:(?:=(?!=)|\\(?:Rightarrow|implies|Longrightarrow|rightarrow|longrightarrow|to|iff)(?![a-zA-Z]))\s*"
    r"|\"(?:hence|thus|therefore|so|then|finally)\"\s*,?\s*(?=\S))+",
    re.IGNORECASE,
)
_LABEL = re.compile(r'^(?:"?the"? )?"?(?:final )?"?answer"?\s*(?:"?is"?|:|=)\s*(?=\S)', re.IGNORECASE)


@lru_cache(maxsize=10_000)
def tidy(text: str) -> str:
    """A text of at most LONGEST_ANSWER characters in the small notation that `syntax` reads."""
    text = _SUPERSCRIPTS.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPT_DIGITS) + "}", text.translate(_UNICODE))
    text = _THIN_THOUSANDS.sub(lambda m: re.sub("[^0-9]", "", m[0]), text)
    text = text.replace("{,}", ",").replace("{:}", ":").replace("**", "^")
    text = rewritten(text, LATEX)
    text = _DOUBLED.sub(r"\\", text) if r"\begin" not in text and r"\cases" not in text else text
    text = _END.sub(r" \\endmatrix ", _DETERMINANT.sub(r" \\determinant ", _MATRIX.sub(r" \\matrix ", text)))
    for _ in range(3):  # \textbf{\text{A}}
        text, found = _TEXT.subn(_words, text)
        if not found:
            break
    text = ROW.sub(" ⏎ ", text)
    text = _COMMAND.sub(lambda m: _COMMANDS.get(m[0], m[0]), text)
    text = text.replace("$", " ").replace("~", " ").replace("\n", " ").replace("...", r"\ldots ")
    text = rewritten(text, UNITS)
    text = _DOTTED.sub(_period, _REPEATING.sub(lambda m: f"{m[1]}({m[2] or m[3]})", text))
    text = _ORDINAL.sub("", " ".join(text.split()))
    if not re.search(r"[(\[\]]|\\[{}]", text):  # between brackets a comma separates: (1,234) has two elements
        text = _BLANK_THOUSANDS.sub(lambda m: m[0].replace(" ", ""), _COMMA_THOUSANDS.sub(_without_commas, text))
    text = _without_stop(_LABEL.sub("", rewritten(text, SMALL)))
    return text if text.casefold() not in PHRASES else " ".join(f'"{word}"' for word in text.split())


def squashed(tidied: str) -> str:
    """The same without what never matters: quotes, blanks except between two digits, case of words."""
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", tidied.replace('"', ""))
    return text.casefold() if text.isalpha() and len(text) > 1 else text


def _words(match: re.Match[str]) -> str:
    """The inside of a text command, its words quoted so that they are not products of letters."""
    inside, name = match["inside"].replace("\\", " \\"), match["name"]
    letter = inside.strip()
    if letter in FUNCTIONS and (name.startswith("operatorname") or letter in _SPOKEN):
        return rf" \{letter} "
    if len(letter) == 1 and letter.isalpha() and not name.startswith(("text", "mbox", "hbox")):
        if letter in "ijk" and name.startswith(("mathbf", "bold", "bm", "pmb")):
            return rf" \vec{{{letter}}} "
        is_unit = name == "mathrm" and letter in _UNITS_OF_ONE_LETTER
        return f' "{letter}" ' if is_unit else f" {letter} "
    return " " + re.sub(r"\\[a-zA-Z]+|" + _LETTERS.pattern, _quoted, inside) + " "


def _quoted(match: re.Match[str]) -> str:
    word = match[0]
    return word if word.startswith("\\") else '"' + word.replace(".", "") + '"'


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


def _period(match: re.Match[str]) -> str:
    """0.333... as 0.(3): a decimal whose tail repeats before the dots. Without a repetition the dots go."""
    head, digits = match[1], match[2]
    for length in range(1, len(digits) // 2 + 1):
        times = 3 if length == 1 else 2
        period = digits[-length:]
        if digits.endswith(period * times):
            return f"{head}{digits[:-length]}({period})"
    return head + digits


def _without_stop(text: str) -> str:
    """Without the punctuation of the sentence around it."""
    text = _LEADING.sub("", text.strip().rstrip(",;")).strip()
    return text[:-1].strip() if text.endswith(".") and not text.endswith("..") else text
