"""What a run is made of, from its settings."""

from __future__ import annotations

from postrl.config import GRPOConfig
from postrl.session import resolve_algorithm


def test_correction_bounds_and_dual_clip_reach_the_algorithm():
    a = resolve_algorithm(GRPOConfig(is_correction="icepop", is_low=0.4, is_high=4, dual_clip=3))
    assert (a.is_correction, a.bounds, a.dual_clip) == ("icepop", {"low": 0.4, "high": 4.0}, 3.0)
    assert resolve_algorithm(GRPOConfig(is_correction="seed", is_eps=0.3)).bounds == {"eps": 0.3}
    assert resolve_algorithm(GRPOConfig(is_correction="opsm", is_delta=0.5)).bounds == {"delta": 0.5}
    assert resolve_algorithm(GRPOConfig()).bounds == {}
