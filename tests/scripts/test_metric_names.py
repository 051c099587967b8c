"""TRL's names of metrics beside ours."""

from __future__ import annotations

from postrl.run.metrics import METRICS
from postrl.scripts.metric_names import TRLS_METRICS, trls_name, with_trls_names


def test_metrics_have_trls_names_beside_ours():
    ours = {
        "step": 3,
        "reward/mean": 0.5,
        "reward/f/mean": 0.25,
        "policy/kl_ref": 0.1,
        "policy/loss": None,
        "epoch": 1.0,
    }
    assert with_trls_names(ours) == {
        **{"step": 3, "reward/mean": 0.5, "reward/f/mean": 0.25, "policy/kl_ref": 0.1, "epoch": 1.0},
        **{"reward": 0.5, "rewards/f/mean": 0.25, "kl": 0.1},
    }


def test_evaluations_have_the_prefix_of_trl():
    names = ["eval/arithmetic/reward", "eval/arithmetic/completion_length", "eval/arithmetic/truncated_frac"]
    assert [trls_name(name) for name in names] == [
        "eval_reward",
        "eval_completions/mean_length",
        "eval_completions/clipped_ratio",
    ]


def test_what_a_reward_function_logs_has_the_name_that_it_gave():
    assert trls_name("reward/f/accuracy") == "accuracy"
    assert [trls_name(f"reward/f/{name}") for name in ("latency_p99", "restarts", "misused_logs")] == [None] * 3
    assert trls_name("reward/f/status/correct") is None


def test_a_name_of_ours_keeps_its_meaning():
    assert with_trls_names({"reward/f/epoch": 7.0, "epoch": 0.5})["epoch"] == 0.5


def test_every_name_of_ours_in_the_table_is_a_metric():
    known = {name.replace("<dataset>", "<name>").replace("<metric>", "reward") for name in METRICS}
    plain = [ours for trls, ours in TRLS_METRICS.items() if not trls.startswith(("eval_", "<"))]
    assert [ours for ours in plain if ours not in known] == []
