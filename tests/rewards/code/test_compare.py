from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postrl.rewards.code.compare import same_output

SAME = [
    ("5\n", "5"),
    ("5", "5\n\n\n"),
    ("1  2 \t3 ", "1 2 3"),
    ("a\r\nb\r\n", "a\nb\n"),
    ("", ""),
    ("\n \n", ""),
    ("0.3333333", "0.333333333333"),
    ("1e-7", "0.0"),
    ("3", "3.0"),
    ("3.0000001", "3.0"),
    ("1000000.5", "1e6"),
    ("12345678901234.5", "12345678901234.51"),
    ("YES 0.50", "YES 0.5"),
    ("nan", "nan"),
    ("a\n\nb", "a\n\nb"),
    ("ü 😀", "ü 😀"),
]
DIFFERENT = [
    ("5.0", "5"),
    ("6", "5"),
    ("05", "5"),
    ("100000001", "100000000"),
    ("nan", "1.5"),
    ("inf", "1.5"),
    ("1e999", "1.5"),
    ("1e999", "1e998"),
    ("-1e999", "1e999"),
    ("0.3334", "0.333333333333"),
    ("1_0.0", "10.0"),
    ("١.٥", "1.5"),
    ("1.5x", "1.5"),
    ("0x1p0", "1.0"),
    ("1,5", "1.5"),
    ("1 2", "1\n2"),
    ("1\n2", "1 2"),
    ("3 2 1", "1 2 3"),
    ("1 2 2", "1 1 2"),
    ("1 2 3 4", "1 2 3"),
    ("1\n2\n3\n4", "1\n2\n3"),
    ("a\nb", "a\n\nb"),
    ("\n5", "5"),
    ("yes", "YES"),
    ("", "5"),
    ("5", ""),
    ("-0", "0"),
]


@pytest.mark.parametrize(("printed", "expected"), SAME)
def test_same(printed, expected):
    assert same_output(printed, expected)


@pytest.mark.parametrize(("printed", "expected"), DIFFERENT)
def test_different(printed, expected):
    assert not same_output(printed, expected)


@given(st.text())
def test_every_output_is_itself(text):
    assert same_output(text, text)


@given(st.integers(), st.integers(min_value=1))
def test_another_integer_is_another_output(number, difference):
    assert not same_output(str(number + difference), str(number))


@given(st.floats(min_value=-1e300, max_value=1e300).filter(lambda x: "." in repr(x)))
def test_a_number_is_met_within_the_tolerance_and_not_far_beyond(number):
    assert same_output(repr(number * (1 + 5e-7)), repr(number))
    assert not same_output(repr(number + 3e-6 * max(1.0, abs(number))), repr(number))


@pytest.mark.parametrize("junk", ["9" * 1_000_000, "1." + "0" * 1_000_000, "e" * 1_000_000, "1 " * 500_000])
def test_long_outputs_are_compared(junk):
    assert same_output(junk, junk)
    assert not same_output(junk, "1.5")
    assert not same_output("1.5", junk)
