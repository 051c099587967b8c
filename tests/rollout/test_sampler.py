"""Seeds of completions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postrl.rollout.sampler import derive_seed


def test_seeds_never_change_between_releases():
    """A resumed run must draw what the run before would have drawn."""
    assert derive_seed(42, 0, "arithmetic:0", 0) == 8195895125050063510
    assert derive_seed(42, 0, "arithmetic:0", 0, attempt=1) == 8256806015437578025


def test_every_part_of_the_key_makes_another_seed():
    keys = [(42, 1, "a:1", 0, 0), (43, 1, "a:1", 0, 0), (42, 2, "a:1", 0, 0), (42, 1, "a:2", 0, 0), (42, 1, "a:1", 1, 0),
            (42, 1, "a:1", 0, 1), (42, 11, "a:1", 0, 0), (4, 21, "a:1", 0, 0)]  # fmt: skip
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_the_seeds_of_a_run_are_distinct():
    seeds = {derive_seed(42, group, f"gsm8k:{group % 50}", i) for group in range(500) for i in range(8)}
    assert len(seeds) == 4000


@given(st.integers(), st.integers(0), st.text(), st.integers(0, 1000))
def test_a_seed_has_63_bits(run, group, prompt, index):
    assert 0 <= derive_seed(run, group, prompt, index) < 2**63  # what torch and vLLM take
