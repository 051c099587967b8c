"""What --weight-sync means for an adapter, decided before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from fake_vllm import FakeVLLM
from helpers import tiny_model_dir
from postrl.config import GRPOConfig
from postrl.errors import ServerError, UsageError
from postrl.launch.adapters import FULL, AdapterPlan, adapter_plan, for_running, without_lora
from postrl.launch.placement import place
from postrl.launch.siblings import siblings
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder
from postrl.servers.client import VLLMServer

LLAMA = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model_dir(tmp_path_factory.mktemp("model")))


def plan(model: str = "org/not-here", *, cpu: bool = True, peft: Any = None, **settings: Any) -> AdapterPlan:
    return adapter_plan(GRPOConfig(engine="vllm", **settings), model, cpu=cpu, peft_config=peft)


def test_an_adapter_goes_by_name_to_servers_with_room_for_what_the_model_adapts(model: str) -> None:
    assert plan(model, lora_rank=16) == AdapterPlan(16, LLAMA)
    assert plan(model, lora_rank=16, lora_target_modules=["q_proj", "layers.1.self_attn.v_proj"]).targets == (
        "q_proj",
        "v_proj",
    )


def test_without_an_adapter_or_a_server_all_weights_are_pushed(model: str) -> None:
    assert plan(model) == FULL
    assert plan(model, weight_sync="full") == FULL
    assert adapter_plan(GRPOConfig(engine="transformers", lora_rank=4), model, cpu=True) == FULL


def test_merge_is_done_without_a_word(model: str) -> None:
    assert plan(model, lora_rank=4, weight_sync="merge") == FULL


@pytest.mark.parametrize("weight_sync", ["lora", "merge"])
def test_what_needs_an_adapter_is_refused_without_one(model: str, weight_sync: str) -> None:
    with pytest.raises(UsageError, match=f"weight_sync = {weight_sync} .* lora_rank = 0") as caught:
        plan(model, weight_sync=weight_sync)
    assert "--lora-rank" in caught.value.hint


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (2, 8), (8, 8), (33, 64), (257, 320), (512, 512)])
def test_vllm_gets_the_next_rank_that_it_knows(rank: int, served: int) -> None:
    assert AdapterPlan(rank).max_lora_rank == served


UNFIT: list[tuple[dict[str, Any], Any, str]] = [
    ({"lora_rank": 513}, None, "up to rank 512"),
    ({"lora_rank": 4, "lora_target_modules": ["q_proj", "lm_head"]}, None, "adapts lm_head"),
    ({}, LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"]), "adapts embed_tokens"),
    ({}, LoraConfig(r=4, target_modules=r".*(q_proj|lm_head)"), "adapts lm_head"),
    ({}, LoraConfig(r=4, bias="all"), "sets bias"),
    ({}, LoraConfig(r=4, init_lora_weights="pissa"), "sets init_lora_weights = pissa"),
    ({}, LoraConfig(r=4, layer_replication=[[0, 2]]), "sets layer_replication"),
    ({}, LoraConfig(r=4, rank_pattern={"q_proj": 1024}), "up to rank 512, and this one has 1024"),
]


@pytest.mark.parametrize(("settings", "peft", "why"), UNFIT, ids=[why for _, _, why in UNFIT])
def test_an_adapter_that_vllm_does_not_take_is_merged_and_it_is_said(
    model: str, settings: dict[str, Any], peft: Any, why: str
) -> None:
    found = plan(model, peft=peft, **settings)
    assert found.rank == 0 and why in found.note()
    with pytest.raises(UsageError, match=f"weight_sync = lora, and .*{why}") as caught:
        plan(model, peft=peft, weight_sync="lora", **settings)
    assert "--weight-sync merge" in caught.value.hint


def test_a_scripts_own_adapter_counts_in_place_of_the_settings(model: str) -> None:
    peft = LoraConfig(r=4, target_modules=["q_proj"], rank_pattern={"v_proj": 12}, init_lora_weights="gaussian")
    assert plan(model, peft=peft) == AdapterPlan(12, ("q_proj",))
    assert plan(model, peft=LoraConfig(r=4, target_modules="all-linear")) == AdapterPlan(4, LLAMA)


def test_modules_with_names_of_their_own_are_served_on_gpus_only(tmp_path: Path) -> None:
    index = {"weight_map": {f"h.{n}.attn.c_attn.weight": "1" for n in (0, 1)} | {"wte.weight": "1"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    settings = {"lora_rank": 4, "lora_target_modules": ["c_attn"]}
    assert plan(str(tmp_path), cpu=False, **settings) == AdapterPlan(4)
    assert "usual projections" in plan(str(tmp_path), **settings).note()


def test_a_model_that_is_not_here_yet_is_taken_for_a_usual_one() -> None:
    assert plan(lora_rank=4, cpu=False) == AdapterPlan(4)
    assert {*LLAMA} < {*plan(lora_rank=4).targets}


# -- servers that run already, and servers that cannot -----------------------------------------------------------------


def info(lora: dict[str, int] | None, runtime: bool = True) -> tuple[int, str]:
    known = {"vllm_config": {"lora_config": lora}, "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": runtime}}
    return 200, json.dumps(known)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (info({"max_lora_rank": 16, "max_loras": 2}), ""),
        (info(None), "takes no LoRA adapters: start it with --enable-lora"),
        (info({"max_lora_rank": 16, "max_loras": 2}, runtime=False), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (info({"max_lora_rank": 8, "max_loras": 2}), "max_lora_rank is 8, and the run needs 16"),
        (info({"max_lora_rank": 16, "max_loras": 1}), "max_loras is 1, and the run needs 2"),
        ((500, "broken"), ""),
    ],
    ids=["fits", "no LoRA", "not at run time", "rank", "number", "left to the attach check"],
)
def test_a_running_server_without_room_for_adapters_gets_them_merged(answer: tuple[int, str], why: str) -> None:
    wanted = AdapterPlan(16)
    with FakeVLLM() as fake:
        fake.answers["/server_info"] = answer
        servers = [VLLMServer(fake.url)]
        found = for_running(wanted, GRPOConfig(lora_rank=16), servers)
        assert found == wanted if not why else (found.rank == 0 and why in found.note() and fake.url in found.note())
        assert for_running(wanted, GRPOConfig(lora_rank=16, weight_sync="lora"), servers) == wanted
        assert for_running(FULL, GRPOConfig(), servers) == FULL


def test_the_run_and_its_worker_know_and_the_terminal_is_told(model: str, tmp_path: Path) -> None:
    placement = place(0, engine="vllm", num_servers=0, tensor_parallel_size=1, num_processes=1)
    with FakeVLLM() as able, FakeVLLM() as unable:
        able.answers["/server_info"] = info({"max_lora_rank": 8, "max_loras": 2})
        unable.answers["/server_info"] = info(None)
        for urls, rank in (([able.url], 4), ([able.url, unable.url], 0)):
            folder = RunFolder(tmp_path / str(rank))
            config = GRPOConfig(
                model=model, dataset=["arithmetic"], engine="vllm", vllm_server_url=urls, lora_rank=4, output_dir=str(folder.path)
            )  # fmt: skip
            folder.prepare(config)
            with siblings(config, folder, placement, model_path=model) as around:
                assert around.connections.adapter_rank == rank
                assert Connections.from_env(around.connections.to_env()) == around.connections
            told = [line for line in (folder.logs / "notes.log").read_text().splitlines() if "LoRA" in line]
            assert len(told) == (rank == 0) and all(unable.url in line for line in told)


def test_servers_that_cannot_start_for_want_of_lora_are_started_for_merged_weights() -> None:
    refused = ServerError(
        "vLLM server 0 could not start (exit code 1): PersimmonForCausalLM does not support LoRA yet."
    )
    found = without_lora(AdapterPlan(16), GRPOConfig(lora_rank=16), refused)
    assert found is not None and found.rank == 0 and "no LoRA for this model" in found.note()
    assert without_lora(AdapterPlan(16), GRPOConfig(lora_rank=16, weight_sync="lora"), refused) is None
    assert without_lora(AdapterPlan(16), GRPOConfig(lora_rank=16), ServerError("out of memory")) is None
    assert without_lora(FULL, GRPOConfig(), refused) is None
