from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postrl.rewards.code.extract import find_program

SQUARE = "def square(n):\n    return n * n\n"
PROMPT = 'def square(n):\n    """The square of n."""\n'


def first(completion: str, *names: str, starter: str | None = None) -> str | None:
    """The sources of the likeliest program, one after the other."""
    program = find_program(completion, names or ("square",), starter)
    return None if program is None else "".join(program.alternatives[0])


@pytest.mark.parametrize(
    "tag",
    [
        "", "py", "python", "python3", "Python", "PY", "python title='a.py'", "{.python}", "py3", "PY3", "Python 3",
        "python3.11", "python-3", "python3.x", "python:main.py", "{python}", "{ .python .numberLines }", "python,linenos",
        "python(3)", "language-python", "ipython", "ipython3",
    ],
)  # fmt: skip
def test_a_block_of_any_python_tag_is_the_program(tag):
    assert first(f"Here:\n```{tag}\n{SQUARE}```\nDone.") == SQUARE


@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_fences_of_any_length_and_kind(fence):
    assert first(f"{fence}python\n{SQUARE}{fence}") == SQUARE


@pytest.mark.parametrize(
    "tag",
    ["text", "bash", "java", "pycon", "console", "json", "python2", "python-repl", "pytest", "pypy", "output", "diff"],
)
def test_a_block_of_another_language_is_no_program(tag):
    assert first(f"```{tag}\n{SQUARE}```") is None


def test_the_last_block_that_defines_the_name_wins():
    draft = "```python\ndef square(n):\n    return n + n\n```"
    assert first(f"{draft}\nBetter:\n```python\n{SQUARE}```\nUse:\n```python\nprint(square(3))\n```") == SQUARE


BEHIND = {
    "complexity": "```\nO(1)\n```",
    "a command": "```\npython a.py < in.txt\n```",
    "sample output": "Output:\n```\n3 4\n7\n```",
    "valid Python": "```\n1\n```",
    "a definition": "```\nsquare = 1\n```",
    "nothing": "```\n```",
    "an empty Python block": "```python\n# usage\n```",
    "a session": "```python\n>>> square(3)\n9\n```",
    "a fence that never closes": "```\n9",
    "tildes": "~~~\n9\n~~~",
    "a list item": "- ```\n  9\n  ```",
    "another language": "```text\nsquare = 1\n```\n```diff\n-square = 1\n```\n```console\n$ square\n```",
    "a longer fence around shorter ones": "````text\n```python\nsquare = 1\n```\n````",
}


@pytest.mark.parametrize("names", [(), ("square",)])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_what_stands_behind_the_program_never_wins(behind, names):
    program = find_program(f"```python\n{SQUARE}```\nSo:\n{behind}\n", names)
    assert program is not None and program.alternatives[0] == (SQUARE,)


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_nor_does_what_stands_before_it(behind):
    assert first(f"{behind}\n\n```python\n{SQUARE}```") == SQUARE


def test_a_definition_without_a_tag_goes_before_a_use_with_one():
    assert first(f"```\n{SQUARE}```\nUse:\n```python\nprint(square(3))\n```") == SQUARE


def test_a_tagged_fence_ends_the_block_before_it():
    assert first(f"```python\nsquare = 1\n```python\n{SQUARE}```") == SQUARE


@pytest.mark.parametrize("fence", ["```", "````"])
def test_an_answer_that_stands_in_a_markdown_block_is_read(fence):
    assert first(f"{fence}markdown\nHere:\n```python\n{SQUARE}```\n{fence}\n") == SQUARE


def test_a_fence_behind_the_mark_of_a_list_item_begins_a_block():
    assert first("1. ```python\n   def square(n):\n       return n * n\n   ```\n2. Done.") == SQUARE


@pytest.mark.parametrize("sign", ["\ufeff", "\u200b", "\u2060"])
def test_signs_that_nobody_sees_hide_nothing(sign):
    for text in (f"{sign}```python\n{SQUARE}```{sign}", f"```python\n{sign}{SQUARE}{sign}```", sign + SQUARE):
        program = find_program(text, ("square",))
        assert program is not None and any(sources[0].strip() == SQUARE.strip() for sources in program.alternatives)


def test_a_string_keeps_the_signs_that_nobody_sees():
    assert first("```python\nsquare = '\u200d'\n```") == "square = '\u200d'\n"


def test_without_a_definition_the_last_block_is_the_program():
    assert first("```python\nx = 1\n```\n```python\nx = 2\n```") == "x = 2\n"


@pytest.mark.parametrize(
    "definition",
    ["class Stack:\n    pass\n", "async def Stack():\n    pass\n", "Stack = list\n", "Stack: type = list\n"],
)
def test_what_counts_as_a_definition(definition):
    assert first(f"```python\n{definition}```\n```python\nStack()\n```", "Stack") == definition


@pytest.mark.parametrize(
    "after",
    ["O(1)", "9", "x = 9", "square(3)\n9", "", " \n", "python square.py < in.txt", "def square(n):\n    return 9"],
)
@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_block_without_a_tag_never_wins_over_one_of_python(fence, after):
    completion = f"```python\n{SQUARE}```\nOutput:\n{fence}\n{after}\n{fence}\nDone."
    assert first(completion) == SQUARE
    assert find_program(completion).alternatives[0] == (SQUARE,)


def test_a_block_without_a_tag_is_the_program_where_only_it_defines_the_name():
    assert first(f"```\n{SQUARE}```\nUse:\n```python\nprint(square(3))\n```") == SQUARE
    assert first(f"```\n{SQUARE}```\nIt gives\n```\n9\n```") == SQUARE


def test_of_blocks_without_a_tag_a_script_is_the_one_that_prints():
    script = "a, b = map(int, input().split())\nprint(a + b)\n"
    for program in (script, script.replace("print(a + b)", "sys.stdout.write(str(a + b))")):
        found = find_program(f"Input:\n```\n3 4\n```\n```\n{program}```\nOutput:\n```\n7\n```\n")
        assert found.alternatives == ((program,),)
    assert find_program("```\n1\n```\n```\n2\n```").alternatives == (("2\n",),)


@pytest.mark.parametrize("mark", ["\ufeff", "\u200b", "\ufeff\u200b"])
def test_marks_of_no_width_hide_neither_a_fence_nor_a_program(mark):
    assert first(f"{mark}```python\n{mark}{SQUARE}{mark}```\nDone.") == SQUARE
    assert first(mark + SQUARE) == SQUARE


def test_a_comparison_defines_nothing():
    assert first("```python\nsquare = abs\n```\n```python\nsquare == abs\n```") == "square = abs\n"


def test_line_ends_are_those_of_unix():
    assert first(f"```python\n{SQUARE}```".replace("\n", "\r\n")) == SQUARE


def test_a_fence_inside_a_line_closes_nothing():
    code = 'def square(n):\n    """Like ``` this."""\n    return n * n  # ```\n'
    assert first(f"```python\n{code}```") == code


def test_a_fence_inside_a_docstring_closes_nothing():
    code = 'def square(n):\n    """\n```\nsquare(3)\n```\n    """\n    return n * n\n'
    assert first(f"```python\n{code}```\nThat is all.") == code


def test_an_open_quote_does_not_hide_the_end_of_a_broken_block():
    assert first('```python\ndef square(n):\n    """never closed\n```\ntext') == 'def square(n):\n    """never closed\n'


def test_an_indented_fence_in_a_list_belongs_to_its_own_block():
    assert first("1. Like so:\n   ```python\n   def square(n):\n       return n * n\n   ```\n2. Done.") == SQUARE


def test_a_block_that_the_text_ends_in_counts():
    assert first(f"```python\n{SQUARE}") == SQUARE + "\n"


def test_reasoning_is_no_answer():
    assert first(f"<think>\n```python\n{SQUARE}```\n") is None
    assert first(f"<think>\n```python\nsquare = 1\n```\n</think>\n```python\n{SQUARE}```") == SQUARE
    assert first(f"<think>\n```python\n{SQUARE}```\n</think>\nSorry.") is None


def test_end_of_turn_tokens_are_no_code():
    assert first(f"{SQUARE}<|im_end|>") == SQUARE


def test_text_without_a_fence_is_the_program_when_it_defines_the_name():
    assert first(SQUARE) == SQUARE
    assert first("The square of n is n times n.") is None
    assert first("   \n") is None


def test_a_script_needs_no_name():
    program = find_program("print(input())")
    assert program is not None and program.alternatives == (("print(input())\n",),) and not program.fenced


def test_a_continuation_stands_behind_its_starter():
    assert first("    return n * n\n", starter=PROMPT) == PROMPT + "    return n * n\n"
    assert first("```python\n    return n * n\n```", starter=PROMPT) == PROMPT + "return n * n\n"


def test_what_a_base_model_writes_after_the_function_may_be_cut():
    program = find_program("    return n * n\n\n\nSome prose, not code.\n", ("square",), PROMPT)
    assert program is not None and (PROMPT + "    return n * n\n\n\n",) in program.alternatives


def test_a_body_without_its_indentation_gets_that_of_the_starter():
    program = find_program("```python\nreturn n * n\n```", ("square",), PROMPT)
    assert program is not None and (PROMPT + "    return n * n\n",) in program.alternatives


def test_a_whole_function_runs_after_its_starter():
    program = find_program(f"```python\n{SQUARE}```", ("square",), "import math\n" + PROMPT)
    assert program is not None and program.alternatives[:2] == (("import math\n" + PROMPT, SQUARE), (SQUARE,))


@given(st.text(alphabet=st.sampled_from("`~python\n \"'#\\ax="), max_size=300))
def test_any_text_is_read(text):
    find_program(text, ("x",), "def x():\n    '''d'''\n")
    find_program(text)


@pytest.mark.parametrize(
    "junk", ["```\n" * 100_000, "`" * 1_000_000, '"""' * 300_000, "```python\n" + "'''\n" * 200_000]
)
def test_long_junk_is_read_in_linear_time(junk):
    find_program(junk, ("x",))
