"""LoRA adapters beside the model: names, folders, and servers that hold something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import PeftModel

from fake_vllm import FakeVLLM
from helpers import tiny_model
from postrl.config import GRPOConfig
from postrl.errors import ServerError
from postrl.learning.learner import Learner
from postrl.learning.loading import with_lora
from postrl.learning.sharding import this_rank
from postrl.servers.api import NOT_OURS
from postrl.servers.client import VLLMServer
from postrl.weights import disk
from postrl.weights.disk import remove_weights, shared_folder
from postrl.weights.lora import LoraTransport
from postrl.weights.transports import restore

SETTINGS = GRPOConfig(lora_rank=2)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "weights"
    yield path
    remove_weights(path)


@pytest.fixture(scope="module")
def learner() -> Learner:
    model = with_lora(tiny_model(), SETTINGS)
    return Learner(model, config=SETTINGS, ranks=this_rank(), dtype="float32", total_updates=1)


def transport(learner: Learner, fakes: list[FakeVLLM], folder: Path, max_staleness: int = 0) -> LoraTransport:
    servers = [VLLMServer(fake.url) for fake in fakes]
    config = learner.policy.peft_config
    return LoraTransport(servers, folder, "float32", peft_config=config, max_staleness=max_staleness)


def folders(folder: Path) -> set[str]:
    return {str(path) for place in (folder, shared_folder(folder)) for path in place.glob("weights-*")}


def test_a_push_loads_a_name_and_touches_nothing_else(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as one, FakeVLLM() as other:
        transport(learner, [one, other], folder).push(learner.adapter(), 0)
        for fake in (one, other):
            assert [route for route in fake.routes if route != "/health"] == ["/v1/models", LOAD]
            assert list(fake.adapters) == ["policy-v0"]


def test_the_folder_is_an_adapter_of_peft(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as fake:
        transport(learner, [fake], folder).push(learner.adapter(), 0)
        loaded = PeftModel.from_pretrained(tiny_model(), fake.adapters["policy-v0"])
    expected = {name.replace(".default.", "."): p for name, p in learner.policy.model.named_parameters()}
    found = {name.replace(".default.", "."): p for name, p in loaded.named_parameters() if "lora_" in name}
    assert found and all(expected[name].equal(parameter) for name, parameter in found.items())


@pytest.mark.parametrize(
    ("max_staleness", "served"), [(0, [3, 4]), (1, [2, 3, 4]), (3, [0, 1, 2, 3, 4])], ids=["0", "1", "3"]
)
def test_names_that_no_rollout_can_need_are_unloaded_and_their_folders_deleted(
    learner: Learner, folder: Path, max_staleness: int, served: list[int]
) -> None:
    with FakeVLLM() as fake:
        adapters = transport(learner, [fake], folder, max_staleness)
        for version in range(5):
            adapters.push(learner.adapter(), version)
            assert len(fake.adapters) <= GRPOConfig(max_staleness=max_staleness).max_loras
        assert list(fake.adapters) == [f"policy-v{version}" for version in served]
        assert folders(folder) == set(fake.adapters.values())
        assert not {"/pause", "/update_weights"} & set(fake.routes)


def test_what_the_canary_pushes_is_gone_after_the_next_push(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as fake:
        adapters = transport(learner, [fake], folder)
        for version in (0, NOT_OURS):
            adapters.push(learner.adapter(), version)
        assert list(fake.adapters) == ["policy-v0", "policy-perturbed"]
        before = fake.adapters["policy-v0"]
        adapters.push(learner.adapter(), 0)
        assert list(fake.adapters) == ["policy-v0"] and fake.adapters["policy-v0"] != before
        assert folders(folder) == set(fake.adapters.values())


def test_adapters_of_an_earlier_run_are_replaced_and_those_of_others_stay(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as fake:
        fake.adapters = {"policy-v0": "/old/0", "policy-v9": "/old/9", "mine": "/home/me"}
        transport(learner, [fake], folder).push(learner.adapter(), 0)
        assert set(fake.adapters) == {"policy-v0", "mine"} and fake.adapters["policy-v0"] in folders(folder)


def test_a_restarted_server_gets_every_adapter_that_is_still_needed(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as fake, FakeVLLM() as restarted:
        adapters = transport(learner, [fake], folder, max_staleness=1)
        for version in range(4):
            adapters.push(learner.adapter(), version)
        assert restore(VLLMServer(restarted.url), folder) == 3
        assert restarted.adapters == fake.adapters and set(fake.adapters) == {"policy-v1", "policy-v2", "policy-v3"}
        assert restarted.routes == ["/v1/models", LOAD, LOAD, LOAD]
        assert restore(VLLMServer(restarted.url), folder) == 3
        assert restarted.routes[4:] == ["/v1/models"]


def test_a_server_that_refuses_is_named_with_the_way_out(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as good, FakeVLLM() as bad:
        bad.answers[LOAD] = 500, "rank 2 is greater than max_lora_rank"
        with pytest.raises(
            ServerError, match=f"{bad.url} does not take the adapter policy-v0: .*max_lora_rank"
        ) as caught:
            transport(learner, [good, bad], folder).push(learner.adapter(), 0)
    assert "--weight-sync merge" in caught.value.hint


def test_at_the_end_a_server_that_goes_on_has_no_names_without_files(learner: Learner, folder: Path) -> None:
    with FakeVLLM() as fake:
        fake.adapters = {"mine": "/home/me"}
        with FakeVLLM() as gone:
            adapters = transport(learner, [fake, gone], folder)
            adapters.push(learner.adapter(), 0)
        adapters.close()
        assert fake.adapters == {"mine": "/home/me"} and not folders(folder)


def test_without_room_in_shared_memory_the_run_folder_is_used_and_cleaned(
    learner: Learner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_memory", lambda: 0)
    with FakeVLLM() as fake:
        adapters = transport(learner, [fake], folder)
        adapters.push(learner.adapter(), 0)
        assert Path(fake.adapters["policy-v0"]).parent == folder
        assert json.loads((folder / "latest.json").read_text())["adapters"] == fake.adapters
    remove_weights(folder)
    assert not folders(folder) and not (folder / "latest.json").exists()
