"""The part of postrl that runs inside vLLM: a weight-transfer backend that reads safetensors files, and, on CPUs only
(`sleep_while_waiting`), waiting that leaves the cores to those that compute.

vLLM loads `register` in each of its processes (entry point group `vllm.general_plugins`). A server started with
`--weight-transfer-config '{"backend": "postrl_disk"}'` then takes `{"path": FILE}` as `update_info`. The file must
lie in one of the folders of `POSTRL_WEIGHTS_DIR` (several: separated as in PATH); any other path is refused before
the model is touched.

The module is imported by vLLM only, which is why it, and it alone, may import vLLM at its top. The ignored type errors
are those of an environment without vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (  # noqa: TID253
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: TID253

from postrl.host.stopping import stay_blocked
from postrl.run.connections import DISK

FOLDERS_VARIABLE = "POSTRL_WEIGHTS_DIR"
SLEEP_VARIABLE = "POSTRL_SLEEP_WHILE_WAITING"


def register() -> None:
    """Make `postrl_disk` known to this process. Safe to call twice, and free of effect unless a server asks for it.

    In a server of a run, the signals that are for the launcher alone stay blocked.
    """
    stay_blocked()
    if DISK not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(DISK, DiskEngine)
    if os.environ.get(SLEEP_VARIABLE) == "1":
        sleep_while_waiting()


# -- weights from files ------------------------------------------------------------------------------------------------


@dataclass
class DiskInitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """Nothing to agree on beforehand."""


@dataclass
class DiskUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    path: str
    """Absolute path of a safetensors file with every weight of the model, under Hugging Face's names."""


class DiskEngine(WeightTransferEngine[DiskInitInfo, DiskUpdateInfo]):  # type: ignore[misc, unused-ignore]
    """Loads a whole model from one file. One `update_weights` per session."""

    init_info_cls = DiskInitInfo
    update_info_cls = DiskUpdateInfo
    model: Any

    def init_transfer_engine(self, init_info: DiskInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        """Nothing yet: the reload takes the model's tensors away, so it begins when the file is known to be good."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not the base class's: that one ends with an accelerator synchronize, which fails where there is none.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: DiskUpdateInfo) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with open_weights(update_info.path) as weights:
            initialize_layerwise_reload(self.model)
            self.model.load_weights(weights)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call, unused-ignore]
        self.refresh_lm_heads()

    def refresh_lm_heads(self) -> None:
        """Pack the LM heads again from the weights they now have.

        A tied head has no weights of its own in the file, so the layerwise reload skips it; on CPUs it computes with
        a packed copy, which would stay at the old weights: fluent and wrong. Quantized heads are not touched: packing
        twice would break them, and they are not tied.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

        for module in self.model.modules():
            if isinstance(module, ParallelLMHead) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        pass


@contextmanager
def open_weights(path: str) -> Iterator[Iterator[tuple[str, torch.Tensor]]]:
    """The (name, tensor) pairs of a safetensors file in an allowed folder, read one by one.

    Raises:
        ValueError: the path lies outside the allowed folders, or is no safetensors file.
    """
    file_path = allowed_path(path)
    try:
        file: Any = safe_open(file_path, framework="pt", device="cpu")
    except Exception as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    with file:
        yield ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 (not a dict)


def allowed_path(path: str) -> Path:
    """`path` with links resolved, if it lies in a folder of POSTRL_WEIGHTS_DIR.

    The routes of a server are open to whoever reaches its port and knows its token; they must not become a way to
    make it read other files.
    """
    real = Path(path).resolve()
    folders = [Path(folder).resolve() for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]
    if not any(real.is_relative_to(folder) for folder in folders):
        allowed = ", ".join(map(str, folders)) or "none"
        raise ValueError(f"{path} is outside the folders that {FOLDERS_VARIABLE} allows ({allowed})")
    return real


# -- on CPUs ------------------------------------------------------------------------------------------------------------


def sleep_while_waiting() -> None:
    """Let processes of the engine that wait for each other sleep until they are notified.

    vLLM's poll for a second before they do, which keeps a whole core busy while the model computes: on a machine with a
    core to spare that is the shortest wait, else it is a core that the model or the trainer does not get.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    condition = getattr(shm_broadcast, "SpinCondition", None)
    if condition is not None and not hasattr(condition, "most_ms"):

        class SleepCondition(condition):  # type: ignore[misc, valid-type]
            most_ms = 5
            """A notification may get lost: vLLM bounds its queue to one, and counts what was fetched late."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.busy_loop_s = 0.0

            def wait(self, timeout_ms: int | None = None) -> None:
                super().wait(self.most_ms if timeout_ms is None else min(timeout_ms, self.most_ms))

        shm_broadcast.SpinCondition = SleepCondition
