"""What postrl changes inside vLLM's processes. The weight-transfer backend: tests/weights/test_vllm_server.py."""

from __future__ import annotations

import time
from typing import Any

import pytest


@pytest.fixture(scope="module")
def vllm_plugin() -> Any:
    """It imports vLLM, which takes seconds, so not every process that looks for tests does."""
    pytest.importorskip("vllm", reason="these tests need vLLM: make env installs its CPU build")
    from postrl.weights import vllm_plugin

    return vllm_plugin


@pytest.fixture
def shm_broadcast(vllm_plugin) -> Any:
    from vllm.distributed.device_communicators import shm_broadcast

    return shm_broadcast


def test_a_process_that_waits_for_another_sleeps_though_nothing_wakes_it(
    tmp_path, monkeypatch, vllm_plugin, shm_broadcast
):
    import zmq

    monkeypatch.setattr(shm_broadcast, "SpinCondition", shm_broadcast.SpinCondition)  # as it was, afterwards
    monkeypatch.setenv(vllm_plugin.SLEEP_VARIABLE, "1")
    vllm_plugin.register()
    vllm_plugin.register()
    with zmq.Context() as context:
        reader = shm_broadcast.SpinCondition(is_reader=True, context=context, notify_address=f"ipc://{tmp_path}/notify")
        reader.record_read()  # vLLM's own would poll for a second now
        start = time.monotonic()
        for _ in range(20):
            reader.wait(timeout_ms=None)
        context.destroy(linger=0)
    assert time.monotonic() - start > 0.05


def test_nothing_is_changed_for_servers_that_postrl_did_not_start(monkeypatch, vllm_plugin, shm_broadcast):
    monkeypatch.delenv(vllm_plugin.SLEEP_VARIABLE, raising=False)
    before = shm_broadcast.SpinCondition
    vllm_plugin.register()
    assert shm_broadcast.SpinCondition is before
