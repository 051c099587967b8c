from __future__ import annotations

from postrl.types import Mean, Sampled, VersionSpan, reported


def test_means_add_up_to_the_mean_of_all():
    """Mean of means would be (1 + 4) / 2."""
    assert (Mean.of([1.0, 1.0, 1.0]) + Mean(4.0, 1.0)).value == 7 / 4


def test_means_are_reported_as_numbers_beside_plain_ones_and_left_out_where_nothing_was_counted():
    assert reported({"reward/mean": Mean(3.0, 4.0), "epoch": 0.5, "policy/nll": Mean()}) == {
        "reward/mean": 0.75,
        "epoch": 0.5,
    }


def test_parts_of_a_completion_join_and_spans_of_the_same_weights_become_one():
    first = Sampled([1, 2], [-0.1, -0.2], [VersionSpan(2, 0, 2)])
    second = Sampled([3, 4, 5], [-0.3, -0.4, -0.5], [VersionSpan(2, 0, 1), VersionSpan(3, 1, 3)], "stop")
    assert Sampled().then(first).then(second) == Sampled(
        [1, 2, 3, 4, 5], [-0.1, -0.2, -0.3, -0.4, -0.5], [VersionSpan(2, 0, 3), VersionSpan(3, 3, 5)], "stop"
    )
    assert first.then(Sampled()) == first
