from __future__ import annotations

import torch

from postrl.algorithms.reduce import accumulate, finish, is_maximum, masked_max, masked_mean


def test_sums_and_counts_add_up_and_are_divided_once():
    """Mean of means would be (1 + 4) / 2."""
    totals = accumulate({"policy/x": (3.0, 3.0)}, {"policy/x": (torch.tensor(4.0), torch.tensor(1))})
    assert finish(totals) == {"policy/x": 7 / 4}


def test_maxima_are_told_by_their_name_and_the_larger_one_stays():
    assert is_maximum("mismatch/max_abs") and is_maximum("completion/length_max")
    assert not is_maximum("policy/loss") and not is_maximum("policy/maximum_share")
    totals = accumulate({"mismatch/max_abs": (torch.tensor(2.0), 1.0)}, {"mismatch/max_abs": (torch.tensor(1.0), 1.0)})
    assert finish(totals) == {"mismatch/max_abs": 2.0}


def test_a_metric_nothing_was_counted_for_is_left_out():
    assert finish({"policy/x": (0.0, 0.0), "policy/y": (0.0, 1.0)}) == {"policy/y": 0.0}


def test_the_effective_sample_size_of_one_heavy_token_among_n_is_one_over_n():
    ratio = torch.tensor([[1000.0, 0.0, 0.0, 0.0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    pairs = {"mismatch/ratio": masked_mean(ratio, mask), "mismatch/ratio_sq": masked_mean(ratio**2, mask)}
    assert finish(pairs) == {"mismatch/ess": 0.25}


def test_accumulate_changes_neither_argument():
    totals, metrics = {"a": (1.0, 1.0)}, {"a": (2.0, 1.0), "b": (1.0, 1.0)}
    accumulate(totals, metrics)
    assert totals == {"a": (1.0, 1.0)} and metrics == {"a": (2.0, 1.0), "b": (1.0, 1.0)}


def test_masked_positions_do_not_count():
    x, mask = torch.tensor([[1.0, torch.nan, 3.0]]), torch.tensor([[1, 0, 1]], dtype=torch.bool)
    assert finish({"mean": masked_mean(x, mask), "x_max": masked_max(x, mask)}) == {"mean": 2.0, "x_max": 3.0}
    assert float(masked_max(x[:0], mask[:0])[0]) == 0
