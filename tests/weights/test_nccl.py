"""What can be said about NCCL without a GPU: the bytes and the words of the protocol, checked with vLLM's own code."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from live_servers import start_server
from postrl.errors import ServerError, UsageError, WaitTimeout
from postrl.run.waiting import in_thread
from postrl.servers.client import VLLMServer
from postrl.weights import nccl

from .conftest import PAIRS, largest_difference, learner_logps, model_of_version

TENSORS = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.ones(5)), ("c", torch.arange(4)), ("d", torch.zeros(40))]


def test_chunks_keep_order_size_and_alignment() -> None:
    """In bfloat16: a 12 bytes, b 10, d 80; c holds integers of 8 bytes, and 22 is no multiple of 8."""
    cut = list(nccl.chunks(TENSORS, "bfloat16", "cpu", most_bytes=60))
    assert [chunk.names for chunk in cut] == [["a", "b"], ["c"], ["d"]]
    assert [chunk.nbytes for chunk in cut] == [22, 32, 80]
    assert cut[0].update_info() == {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[2, 3], [5]]}


def test_vllm_cuts_a_chunk_up_as_it_was_packed() -> None:
    packing = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor", reason="vLLM is not installed")
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

    arrived = []
    for chunk in nccl.chunks(TENSORS, "float32", "cpu"):
        info = NCCLWeightTransferUpdateInfo(**chunk.update_info())
        dtypes = [getattr(torch, name) for name in info.dtype_names]
        sizes = [tensor.nbytes for tensor in chunk.tensors]
        arrived += packing.unpack_tensor(chunk.packed(), info.names, info.shapes, dtypes, sizes)
    assert [name for name, _ in arrived] == [name for name, _ in TENSORS]
    assert all(torch.equal(tensor, sent) for (_, tensor), (_, sent) in zip(arrived, TENSORS, strict=True))
    NCCLWeightTransferInitInfo(**nccl.init_info("127.0.0.1", 1234, 3))


def test_the_first_error_ends_a_wait_that_the_other_side_would_not() -> None:
    def fail() -> None:
        raise ServerError("no such weight")

    never = threading.Event()
    with pytest.raises(ServerError, match="no such weight"):
        nccl.wait_for([in_thread(never.wait), in_thread(fail)], "a chunk", 60)
    with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for a chunk"):
        nccl.wait_for([in_thread(never.wait)], "a chunk", 0.1)
    never.set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_a_gpu_it_says_what_to_use() -> None:
    with pytest.raises(UsageError, match="CUDA") as caught:
        nccl.NcclTransport([VLLMServer("http://127.0.0.1:9")], "float32")
    assert "disk" in caught.value.hint


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices: one for the learner, one for vLLM")
def test_a_server_scores_like_the_learner_after_pushes_over_nccl(tmp_path: Path) -> None:
    live = start_server(tmp_path, "nccl", backend="nccl", devices=[1])
    try:
        live.wait()
        transport = nccl.NcclTransport([live.server], "float32")
        for version in (0, 1):
            model = model_of_version(version)
            transport.push(model.named_parameters(), version)
            assert largest_difference([live.server.score(*pair) for pair in PAIRS], learner_logps(model)) < 1e-2
            assert live.server.weight_info() == version
        transport.close()
    finally:
        live.stop()
