"""What a reward asks for is read from its source, and what it lacks is found before anything starts."""

from __future__ import annotations

import inspect

import pytest

from postrl.errors import UsageError
from postrl.rewards.builtin import BUILTINS
from postrl.rewards.declared import check_options, declared
from postrl.rewards.registry import load, resolve, with_options

SETTINGS = ("max_completion_length", "sandbox")


@pytest.mark.parametrize("name", BUILTINS)
def test_what_the_source_says_is_what_the_function_takes(name):
    asks, parameters = declared(resolve(name)), dict(inspect.signature(load(resolve(name))).parameters)
    assert asks.any == any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    parameters = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert asks.names == tuple(parameters)
    assert asks.required == tuple(n for n, p in parameters.items() if p.default is p.empty)
    assert asks.options == tuple(n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY)
    check = with_options([resolve(name)], [])[0]
    if name not in ("judge", "reward_model"):
        check_options(check, SETTINGS)


@pytest.mark.parametrize(
    ("source", "required", "takes_any"),
    [
        ("def f(completions, gold, level=1, *, scale, x=2, **kw): ...", ("completions", "gold", "scale"), True),
        ("async def f(prompts, /, completions): ...", ("prompts", "completions"), False),
        ("def f(a): ...\ndef f(b): ...", ("b",), False),
    ],
)
def test_a_file_is_read_and_not_run(tmp_path, source, required, takes_any):
    (tmp_path / "r.py").write_text(f"{source}\nraise SystemExit\n")
    asks = declared(resolve(f"{tmp_path}/r.py:f"))
    assert (asks.required, asks.any) == (required, takes_any)


@pytest.mark.parametrize(
    "source",
    [
        "@wrap\ndef f(a): ...",
        "f = lambda a: 1",
        "class f: ...",
        "def f(a): ...\nf = partial(f, a=1)",
        "def f(a): ...\nif fast:\n    def f(b): ...",
        "def f(a): ...\nfrom others import g as f",
    ],
)
def test_what_is_not_plain_is_left_to_its_worker(tmp_path, source):
    (tmp_path / "r.py").write_text(source)
    assert declared(resolve(f"{tmp_path}/r.py:f")) is None


@pytest.mark.parametrize(
    ("reward", "args", "message", "hint"),
    [
        ("judge", [], "reward judge needs the option url and model", "--reward-arg judge.url=http://HOST:PORT/v1"),
        ("judge", ["judge.url=http://localhost:1/v1"], "judge needs the option model", "judge.model=MODEL"),
        ("judge", ["judge.modle=x"], "judge has no option 'modle'; it has url, model", "remove --reward-arg judge.modle"),
        ("judge", ["judge.url=http://a/v1", "judge.model=m", "judge.rubric=no.md"], "cannot read the judge's rubric no.md", "rubric"),
        ("judge", ["judge.url=http://a/v1", "judge.model=m", "judge.api_key_env=NOT_SET_HERE"], "NOT_SET_HERE", "export"),
        ("reward_model", [], "reward reward_model needs the option model", "reward_model.model="),
        ("soft_overlong", ["soft_overlong.cash=3"], "has no option 'cash'", "soft_overlong.cash"),
    ],
)  # fmt: skip
def test_a_built_in_without_what_it_needs_is_refused(reward, args, message, hint):
    (spec,) = with_options([resolve(reward)], args)
    with pytest.raises(UsageError) as error:
        check_options(spec, SETTINGS)
    assert message in error.value.message and hint in error.value.hint
