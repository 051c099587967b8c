from __future__ import annotations

import torch

from postrl.algorithms.aggregate import count
from postrl.algorithms.filters import fresh, staleness, truncation_mask

from .cases import CASES


def test_golden_truncated_completions_leave_the_mask_and_the_denominators():
    case = CASES["truncated_mask"]
    expected = case["expected"]
    mask = torch.tensor(case["inputs"]["mask"], dtype=torch.bool)
    after = truncation_mask(mask, torch.tensor(case["inputs"]["truncated"]))
    assert after.int().tolist() == expected["mask_after"]
    assert count(after) == (expected["token_denominator"], expected["seq_denominator"])


def test_golden_staleness_is_measured_at_the_oldest_token():
    case = CASES["staleness_filter"]
    version, oldest = (
        case["inputs"]["current_version"],
        torch.tensor([min(v) for v in case["inputs"]["token_versions"]]),
    )
    assert staleness(version, oldest).tolist() == case["expected"]["staleness"]
    assert fresh(version, oldest, case["config"]["max_staleness"]).tolist() == case["expected"]["keep"]
