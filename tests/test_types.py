from __future__ import annotations

from postrl.types import Mean, reported


def test_means_add_up_to_the_mean_of_all():
    """Mean of means would be (1 + 4) / 2."""
    assert (Mean.of([1.0, 1.0, 1.0]) + Mean(4.0, 1.0)).value == 7 / 4


def test_means_are_reported_as_numbers_beside_plain_ones_and_left_out_where_nothing_was_counted():
    assert reported({"reward/mean": Mean(3.0, 4.0), "epoch": 0.5, "policy/nll": Mean()}) == {
        "reward/mean": 0.75,
        "epoch": 0.5,
    }
