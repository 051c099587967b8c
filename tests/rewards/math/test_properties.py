from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from postrl.rewards.math import math_reward
from rewards.math.verdicts import boxed, status

numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.integers(0, 10**9).map(lambda n: f"{n:,}"),
    st.fractions(max_denominator=10**6).map(str),
    st.decimals(-(10**6), 10**6, places=4).map(str),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
)
letters = st.sampled_from("abcnxyz")
terms = st.recursive(
    st.one_of(st.integers(1, 20).map(str), letters, st.just(r"\pi")),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", r"\cdot "]), inner).map("".join),
        st.tuples(inner, inner).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
        inner.map(lambda t: rf"\sqrt{{{t}}}"),
        inner.map(lambda t: rf"\left({t}\right)^{{2}}"),
    ),
    max_leaves=6,
)
junk = st.text(alphabet=list("\\{}[]()$%# boxedfracsqrtanwin:0123456789.,-+/*^_=<>|!\"'°\n"), max_size=200)


@given(st.one_of(numbers, terms))
def test_every_gold_equals_itself(gold):
    assert boxed(gold, gold) == "correct"


@given(st.fractions(max_denominator=10**6))
def test_a_number_is_not_its_successor(number):
    assert boxed(str(number), str(number + 1)) == "wrong"
    assert boxed(str(number), str(number)) == "correct"


@given(st.integers(1, 10**9), st.integers(0, 9))
def test_a_number_is_itself_in_every_way_to_write_it(number, decimals):
    fixed = f"{number}.{'0' * decimals}"
    for written in (
        f"{number:,}",
        f"{number:,}".replace(",", "{,}"),
        f"{number:,}".replace(",", r"\,"),
        f"00{number}",
        fixed,
    ):
        assert boxed(str(number), written) == "correct"
        assert boxed(str(number + 1), written) == "wrong"


@given(st.lists(st.one_of(numbers, letters), min_size=1, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_a_set_does_not_matter(items, shuffle):
    items = [item.replace(",", "") for item in items]
    shuffled = items[:]
    shuffle.shuffle(shuffled)
    gold, answer = (rf"\{{{', '.join(part)}\}}" for part in (items, shuffled))
    assert boxed(gold, answer) == "correct"
    assert boxed(gold, rf"\{{{', '.join([*shuffled, '-7777777'])}\}}") == "wrong"
    assert boxed(rf"\{{{', '.join([*items, '-7777777'])}\}}", answer) == "wrong"


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_a_verdict_does_not_depend_on_its_neighbours(rows, shuffle):
    alone = [math_reward([rf"\boxed{{{answer}}}"], [gold])[0] for gold, answer in rows]
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    together = math_reward([rf"\boxed{{{rows[i][1]}}}" for i in order], [rows[i][0] for i in order])
    assert together == [alone[i] for i in order]


@given(junk, st.sampled_from(["7", "x+1", r"\{1,2\}", "(1,2)", "B", "Evelyn", "x<3", r"\frac{\sqrt3}{2}"]))
def test_no_text_makes_it_raise(text, gold):
    for completion in (text, rf"\boxed{{{text}}}", f"The answer is {text}"):
        assert status(gold, completion) in ("correct", "wrong", "no_answer")
    assert status(text, r"\boxed{7}") in ("correct", "wrong", "gold_unscorable")


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=64), st.sampled_from([1_000_000, 900]))
def test_a_megabyte_of_junk_takes_less_than_a_second_of_work(data, size):
    text = (data or b"{").decode("latin-1") * (size // max(1, len(data)))
    begin = time.thread_time()  # not the clock on the wall: other processes may be at work
    assert status("7", text) in ("wrong", "no_answer", "correct")
    assert status("7", rf"\boxed{{{text}}}") in ("wrong", "no_answer", "correct")
    assert time.thread_time() - begin < 1


def test_the_verdicts_of_large_batches_keep_their_order():
    chooser = random.Random(0)
    golds = [str(chooser.randrange(1000)) for _ in range(5000)]
    answers = [gold if chooser.random() < 0.5 else str(int(gold) + 1) for gold in golds]
    scores = math_reward([rf"\boxed{{{answer}}}" for answer in answers], golds)
    assert [score.value for score in scores] == [float(g == a) for g, a in zip(golds, answers)]
