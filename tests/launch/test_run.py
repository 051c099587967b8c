"""What the launcher refuses before anything starts."""

from __future__ import annotations

import pytest

from postrl.config import GRPOConfig
from postrl.errors import UsageError
from postrl.launch.run import check_data


def test_data_that_something_scores_passes(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1?"}\n')
    check_data(GRPOConfig(dataset=["arithmetic"]))
    check_data(GRPOConfig(dataset=["arithmetic", f"{tmp_path}/rows.jsonl=0.5"], reward=["math"]))


def test_data_that_nothing_scores_is_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1?"}\n')
    with pytest.raises(UsageError, match=r"no reward is given, and .*rows\.jsonl has none of its own"):
        check_data(GRPOConfig(dataset=[f"{tmp_path}/rows.jsonl"]))
