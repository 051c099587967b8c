"""The comparison, by hand: one text of two scored tokens, two servers."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fake_vllm import FakeVLLM
from helpers import tiny_model
from postrl.errors import CanaryError, ServerError
from postrl.servers.client import VLLMServer
from postrl.weights.canary import EMPTY, FLOOR, Canary, perturbation

A, B = "http://a", "http://b"
START = [[-1.0, -2.0]]


def calibrated(noise: float = 0.0) -> Canary:
    """Both servers are `noise` above the learner on every token."""
    canary = Canary([([1, 2, 3], 1)])
    canary.calibrate(START, {A: moved(noise), B: moved(noise)})
    return canary


def moved(by: float, second: float | None = None) -> list[list[float]]:
    return [[-1.0 + by, -2.0 + (by if second is None else second)]]


def test_the_tolerance_is_three_times_the_noise_but_not_below_the_floor() -> None:
    assert calibrated(0.01).tolerance == pytest.approx(0.03)
    assert calibrated(0.0).tolerance == FLOOR


def test_a_server_that_follows_passes_whatever_its_constant_offset() -> None:
    canary = calibrated(0.05)
    report = canary.check(1, moved(0.5), {A: moved(0.55), B: moved(0.55)})
    assert report.deviation == pytest.approx(0.0, abs=1e-12) and report.change == pytest.approx(0.5)


def test_a_server_that_stays_is_named_with_version_and_size() -> None:
    with pytest.raises(CanaryError) as caught:
        calibrated().check(4, moved(0.5), {A: moved(0.5), B: moved(0.0)})
    for part in (B, "version 4", "0.5 apart", "did not move"):
        assert part in caught.value.message
    assert A not in caught.value.message


def test_a_server_that_follows_in_part_is_suspected_of_a_stale_head() -> None:
    with pytest.raises(CanaryError, match=r"0\.141 apart \(largest deviation 0\.2\), .* 0\.051.*stale LM head"):
        calibrated().check(1, moved(0.5), {A: moved(0.5, 0.3), B: moved(0.5)})


def test_a_server_that_moves_alone_is_suspected_of_other_weights() -> None:
    with pytest.raises(CanaryError, match="the learner did not"):
        calibrated().check(1, moved(0.0), {A: moved(0.1), B: moved(0.0)})


def test_small_errors_of_one_sign_are_found_when_they_have_added_up() -> None:
    """Tolerance 0.03 and a tenth of the change; the server falls back by 0.03 a version."""
    canary = calibrated(0.01)
    canary.check(1, moved(0.1), {A: moved(0.08), B: moved(0.11)})
    with pytest.raises(CanaryError, match=f"(?s){A} .* Since version 0"):
        canary.check(2, moved(0.2), {A: moved(0.15), B: moved(0.21)})


def test_noise_that_grows_with_a_large_change_is_no_alarm() -> None:
    """0.09 apart after a change of 1: within a tenth."""
    report = calibrated().check(1, moved(1.0), {A: moved(0.91), B: moved(1.0)})
    assert (report.deviation, report.largest, report.change) == pytest.approx((0.09, 0.09, 1.0))


def test_calibration_refuses_a_server_with_other_weights() -> None:
    with pytest.raises(CanaryError, match=r"0\.6 nats per token"):
        calibrated(0.6)


def test_no_log_prob_is_no_match() -> None:
    with pytest.raises(CanaryError, match="NaN"):
        calibrated().check(1, START, {A: [[-1.0, math.nan]], B: START})


def test_visible_means_five_tolerances() -> None:
    canary = calibrated(0.01)
    assert canary.visible(moved(0.151)) and not canary.visible(moved(0.149))


# -- servers that fall between a push and the question -----------------------------------------------------------------


def test_a_server_that_was_not_asked_is_compared_again_after_the_next_push() -> None:
    canary = calibrated()
    assert canary.check(1, moved(0.5), {A: moved(0.5)}).change == pytest.approx(0.5)
    canary.check(2, moved(0.6), {A: moved(0.6), B: moved(0.6)})
    with pytest.raises(CanaryError, match=f"(?s){B} .* Since version 2"):
        canary.check(3, moved(0.9), {A: moved(0.9), B: moved(0.6)})


def test_a_push_after_which_no_server_was_asked_stops_nothing() -> None:
    assert calibrated().check(1, moved(0.5), {}).deviation == 0.0


def test_servers_that_are_down_or_back_with_other_weights_are_left_out() -> None:
    pair = ([1, 2, 3], 1)
    with FakeVLLM() as restarted, FakeVLLM() as fine:
        fine.version = "3"
        fine.answers["/inference/v1/generate"] = (
            200,
            json.dumps({"prompt_logprobs": [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -2.0}}]}),
        )
        servers = [VLLMServer(url) for url in ("http://127.0.0.1:9", restarted.url, fine.url)]
        assert Canary([pair], servers).scores(3) == {fine.url: START}
        assert "/inference/v1/generate" not in restarted.routes


def test_a_server_that_holds_the_weights_and_cannot_score_is_an_error() -> None:
    with FakeVLLM() as broken:
        broken.version = "3"
        broken.answers["/inference/v1/generate"] = 500, "no"
        with pytest.raises(ServerError, match="HTTP 500"):
            Canary([([1, 2, 3], 1)], [VLLMServer(broken.url)]).scores(3)


# -- checksums ---------------------------------------------------------------------------------------------------------


def checksums(a: str, b: str, *, other: str = "x") -> dict[str, dict[str, str]]:
    return {url: {"norm": digest, "head": other, "packed": EMPTY} for url, digest in ((A, a), (B, b))}


def test_checksums_must_agree_across_servers() -> None:
    with pytest.raises(CanaryError, match=f"{B} and {A} differ .* norm"):
        calibrated().check(1, moved(0.1), {A: moved(0.1), B: moved(0.1)}, checksums("1", "2"))


def test_servers_that_are_split_over_devices_differently_are_not_compared() -> None:
    sums = {A: {"tp0:norm": "1"}, B: {"tp0:norm": "2", "tp1:norm": "3"}}
    calibrated().check(1, START, {A: START, B: START}, sums)


def test_checksums_must_change_with_the_weights() -> None:
    canary = Canary([([1, 2, 3], 1)])
    canary.calibrate(START, {A: START, B: START}, checksums("1", "1"))
    canary.check(1, START, {A: START, B: START}, checksums("1", "1"))  # the learner did not move
    with pytest.raises(CanaryError, match="kept old weights"):
        canary.check(2, moved(0.1), {A: moved(0.1), B: moved(0.1)}, checksums("1", "1"))


def test_a_perturbed_push_must_change_every_tensor_and_the_true_one_must_undo_it() -> None:
    canary, scores = Canary([([1, 2, 3], 1)]), {A: moved(0.1), B: moved(0.1)}
    canary.calibrate(START, {A: START, B: START}, checksums("1", "1"))
    with pytest.raises(CanaryError, match="head"):
        canary.check(-1, moved(0.1), scores, checksums("2", "2"), every_tensor=True)
    canary.check(-1, moved(0.1), scores, checksums("2", "2", other="y"), every_tensor=True)
    with pytest.raises(CanaryError, match="first push of version 0"):
        canary.check(0, START, {A: START, B: START}, checksums("1", "1", other="z"))
    canary.check(0, START, {A: START, B: START}, checksums("1", "1"))


def test_a_perturbation_changes_every_tensor_and_is_undone_to_the_bit() -> None:
    model = tiny_model().to(torch.bfloat16)
    torch.nn.init.zeros_(model.model.norm.weight)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(KeyError), perturbation(model.parameters(), 0.02):
        for name, parameter in model.named_parameters():
            assert (parameter != before[name]).float().mean() > 0.5, name
        raise KeyError
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
