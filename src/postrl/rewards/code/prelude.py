"""Names that candidates (and tests) use without importing them, as LeetCode and most judges allow.

A name is bound before the code runs and only if the code mentions it, so nothing that the code defines is shadowed, no
built-in is replaced, and nothing is imported in vain. Used in the candidate's process: no imports of postrl.
"""

from __future__ import annotations

import builtins
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MODULES = {
    "abc", "array", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv",
    "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools",
    "json", "math", "numbers", "numpy", "operator", "os", "queue", "random", "re", "statistics", "string", "struct",
    "sys", "textwrap", "threading", "time", "types", "typing", "unicodedata", "uuid",
}  # fmt: skip
MEMBERS = {
    "abc": "ABC abstractmethod",
    "bisect": "bisect_left bisect_right insort insort_left insort_right",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "deepcopy",
    "dataclasses": "dataclass field",
    "decimal": "Decimal",
    "enum": "Enum IntEnum",
    "fractions": "Fraction",
    "functools": "cache cmp_to_key lru_cache partial reduce wraps",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "itertools": "accumulate chain combinations combinations_with_replacement groupby islice pairwise permutations product zip_longest",
    "math": "ceil comb factorial floor gcd inf isqrt lcm sqrt",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits punctuation",
    "typing": "Any AnyStr Callable ClassVar DefaultDict Deque Dict Final FrozenSet Generator Generic Hashable Iterable Iterator "
    "List Literal Mapping MutableMapping MutableSequence NamedTuple NoReturn Optional Protocol Self Sequence Set Sized Text Tuple "
    "Type TypeVar Union",
}
NAMES: dict[str, tuple[str, str]] = {
    **{name: (name, "") for name in MODULES},
    "np": ("numpy", ""),
    **{name: (module, name) for module, names in MEMBERS.items() for name in names.split()},
}
"""name -> (module, attribute), the attribute empty for the module itself."""


def _special(words: str) -> tuple[str, ...]:
    return tuple(f"__{word}__" for word in words.split())


BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
ARITHMETIC = (
    *_special(BINARY),
    *_special(" r".join(["", *BINARY.split()])),
    *_special(" i".join(["", *BINARY.replace("divmod ", "").split()])),
)
NUMERIC = _special("neg pos abs invert int float complex index round trunc floor ceil bool")
ORDER = _special("lt le gt ge")
CONTAINER = _special("len iter next reversed getitem setitem delitem contains")
TEXT = _special("str repr format bytes")
OTHER = _special("call enter exit hash aiter anext aenter aexit")
DUNDERS = (*ARITHMETIC, *NUMERIC, *ORDER, *CONTAINER, *TEXT, *OTHER)
"""Special methods that objects of the candidate have on the side of the tests, where its class has them."""


def provide(code: types.CodeType, namespace: dict[str, Any]) -> None:
    """Bind the names of the prelude that the code mentions and the namespace does not have."""
    for name in mentioned(code) & NAMES.keys() - namespace.keys() - vars(builtins).keys():
        module, attribute = NAMES[name]
        try:
            found = __import__(module)
            namespace[name] = getattr(found, attribute) if attribute else found
        except (ImportError, AttributeError):  # numpy is not installed, an older Python: a NameError says so
            continue


def mentioned(code: types.CodeType) -> set[str]:
    """All names that the code, with its functions and classes, reads from its module (and names of attributes)."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= mentioned(constant)
    return names


def compile_first(alternatives: Sequence[Sequence[str]]) -> list[types.CodeType]:
    """The code of the first alternative whose sources all compile.

    Raises:
        SyntaxError: none does.
    """
    problem: Exception | None = None
    for sources in alternatives:
        try:
            return [compile(source, "solution.py", "exec", dont_inherit=True) for source in sources]
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            problem = problem or error
    raise SyntaxError(f"{type(problem).__name__}: {problem}")
