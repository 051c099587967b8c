"""How a batch is cut: properties over random batches, and a few cuts by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postrl.learning.microbatch import plan, split
from postrl.learning.on_cpu import shared_packing

batches = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5)), max_size=40)
"""(length, group id) of each row."""


@given(batches, st.integers(1, 4), st.integers(1, 4), st.integers(1, 1000))
def test_every_row_comes_exactly_once(rows, minibatches, ranks, max_tokens):
    cut = plan(
        [n for n, _ in rows], minibatches=minibatches, ranks=ranks, max_tokens=max_tokens, groups=[g for _, g in rows]
    )
    found = [row for minibatch in cut for rank in minibatch for micro in rank for row in micro]
    assert sorted(found) == list(range(len(rows)))


@given(batches, st.integers(1, 4), st.integers(1, 4), st.integers(1, 1000))
def test_ranks_run_the_same_number_of_passes(rows, minibatches, ranks, max_tokens):
    cut = plan(
        [n for n, _ in rows], minibatches=minibatches, ranks=ranks, max_tokens=max_tokens, groups=[g for _, g in rows]
    )
    assert len(cut) == minibatches
    for minibatch in cut:
        assert len(minibatch) == ranks
        assert len({len(rank) for rank in minibatch}) == 1


@given(batches, st.integers(1, 4), st.integers(1, 1000))
def test_padded_tokens_stay_within_the_budget_unless_one_row_alone_exceeds_it(rows, ranks, max_tokens):
    lengths = [n for n, _ in rows]
    (cut,) = plan(lengths, minibatches=1, ranks=ranks, max_tokens=max_tokens, groups=[g for _, g in rows])
    for micro in (micro for rank in cut for micro in rank if micro):
        assert len(micro) == 1 or len(micro) * max(lengths[row] for row in micro) <= max_tokens


@given(batches, st.integers(1, 4), st.integers(1, 3), st.integers(1, 1000), st.integers(1, 1000))
def test_who_trains_on_a_row_does_not_depend_on_the_budget(rows, minibatches, ranks, one, other):
    """Log-probs that a rank computed before the update stay with it when the budget is halved."""
    lengths, groups = [n for n, _ in rows], [g for _, g in rows]

    def owners(max_tokens):
        cut = plan(lengths, minibatches=minibatches, ranks=ranks, max_tokens=max_tokens, groups=groups)
        return [[sorted(row for micro in rank for row in micro) for rank in minibatch] for minibatch in cut]

    assert owners(one) == owners(other)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_whole_groups_share_a_minibatch_where_they_divide(minibatches, groups_each, size, ranks, random):
    groups = [g for g in range(minibatches * groups_each) for _ in range(size)]
    random.shuffle(groups)
    cut = plan([10] * len(groups), minibatches=minibatches, ranks=ranks, max_tokens=50, groups=groups)
    seen = [{groups[row] for rank in minibatch for micro in rank for row in micro} for minibatch in cut]
    assert all(len(ids) == groups_each for ids in seen)
    assert len(set().union(*seen)) == minibatches * groups_each


def test_minibatches_are_of_equal_size_where_groups_do_not_divide():
    cut = plan([1] * 12, minibatches=2, ranks=1, max_tokens=100, groups=[g for g in range(3) for _ in range(4)])
    assert [sum(map(len, minibatch[0])) for minibatch in cut] == [6, 6]


def test_the_longest_rows_share_a_pass_and_the_ranks_share_the_load():
    # longest first onto the rank with fewer tokens: rank 0 gets 90 + 10 + 10, rank 1 gets 80 + 20
    cut = plan([10, 90, 20, 80, 10], minibatches=1, ranks=2, max_tokens=100, groups=[0] * 5)
    assert cut == [[[[1], [0, 4]], [[3], [2]]]]


def test_an_idle_rank_gets_empty_passes():
    assert plan([50, 40], minibatches=1, ranks=3, max_tokens=40, groups=[0, 0]) == [[[[0]], [[1]], [[]]]]


def test_an_empty_batch_has_an_empty_pass_for_every_rank():
    assert plan([], minibatches=2, ranks=2, max_tokens=10, groups=[]) == [[[[]], [[]]], [[[]], [[]]]]


# -- rows that are left out, prompts that are read once ----------------------------------------------------------------


@given(batches, st.integers(1, 4), st.integers(1, 3), st.sets(st.integers(0, 39)), st.booleans())
def test_rows_to_skip_are_left_out_and_every_rank_still_runs_a_pass(rows, minibatches, ranks, skip, share):
    lengths, groups = [n for n, _ in rows], [g for _, g in rows]
    prompt = min(lengths, default=0)
    packing = shared_packing([prompt] * len(rows), [n - prompt for n in lengths], groups) if share else None
    cut = plan(lengths, minibatches=minibatches, ranks=ranks, max_tokens=300, groups=groups, packing=packing, skip=skip)
    found = [row for minibatch in cut for rank in minibatch for micro in rank for row in micro]
    assert sorted(found) == [row for row in range(len(rows)) if row not in skip]
    for minibatch, whole in zip(cut, split(groups, minibatches), strict=True):
        assert {row for rank in minibatch for micro in rank for row in micro} == set(whole) - skip
        assert len({len(rank) for rank in minibatch}) == 1
        assert all(rank for rank in minibatch)


def test_a_shared_prompt_counts_once():
    # two groups with a prompt of 10 tokens: a pass holds 10 + 2 x 5 = 20 tokens of one, and 2 x 10 + 4 x 5 = 40 of both
    lengths, groups = [15, 15, 14, 15], [0, 1, 0, 1]
    packing = shared_packing([10] * 4, [n - 10 for n in lengths], groups)
    common = {"minibatches": 1, "ranks": 1, "groups": groups}
    assert plan(lengths, max_tokens=40, packing=packing, **common) == [[[[0, 2, 1, 3]]]]
    assert plan(lengths, max_tokens=39, packing=packing, **common) == [[[[0, 2, 1], [3]]]]
    assert plan(lengths, max_tokens=20, packing=packing, **common) == [[[[0, 2], [1, 3]]]]
    assert plan(lengths, max_tokens=40, **common) == [[[[0, 1], [3, 2]]]]
