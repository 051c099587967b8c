"""LoRA adapters by name: each version is loaded beside the older ones, and nothing is paused.

    RUN/weights/latest.json         {"transport": "lora", "version": 7, "adapters": {"policy-v6": FOLDER, "policy-v7": FOLDER}}
    /dev/shm/postrl-<run>-<digest>/weights-policy-v7-x1y2z3/        adapter_config.json, adapter_model.safetensors;
                                                                    or in RUN/weights/

A request names its version (`postrl.servers.api.adapter_name`), so the name is the version of all its tokens: those in
flight finish under the weights they began with. The base model stays what the servers were started with; it is never
pushed, for a full push would unload every adapter. The servers need --enable-lora with --max-lora-rank and --max-loras,
and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.

A folder lives as long as its name: vLLM reads an adapter again when others have taken its place in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postrl.errors import PostrlError, ServerError
from postrl.servers.api import ADAPTER_PREFIX, NOT_OURS, adapter_name
from postrl.servers.client import VLLMServer
from postrl.weights.disk import PREFIX, DiskTransport

if TYPE_CHECKING:
    import torch


NAME = "lora"


class LoraTransport(DiskTransport):
    """Publishes a LoRA adapter, whose tensors have the names of peft's files, under a new name for each version.

    Args:
        peft_config: the adapter's peft.LoraConfig.
        max_staleness: versions that a rollout may be behind; names that none can need any more are unloaded.
        servers, folder, dtype, times: as `DiskTransport`.
    """

    name, what = NAME, "adapter"

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        folder: str | Path,
        dtype: str,
        *,
        peft_config: Any,
        max_staleness: int = 0,
        **times: Any,
    ) -> None:
        super().__init__(servers, folder, dtype, **times)
        self.peft_config, self.max_staleness = peft_config, max_staleness

    def save(self, weights: dict[str, torch.Tensor], version: int, folder: Path) -> Path:
        """The adapter in peft's format, in a new folder of its own."""
        from safetensors.torch import save_file

        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{adapter_name(version)}-", dir=folder))
        self.peft_config.save_pretrained(str(path))
        save_file(weights, path / "adapter_model.safetensors", metadata={"format": "pt"})
        return path

    def needed(self, version: int, newest: int) -> bool:
        """Whether a completion may still run under `version` once `newest` is there.

        What is trained is at most max_staleness behind; one name more is kept for what is about to be given up. Weights
        that are no version (NOT_OURS, of the canary) take nobody's place, and go with the next push.
        """
        return newest == NOT_OURS or max(0, newest - self.max_staleness - 1) <= version <= newest

    def pointer(self, version: int) -> dict[str, Any]:
        return {"adapters": {adapter_name(v): str(at) for v, at in self.published.items()}}

    def load(self, server: VLLMServer, latest: dict[str, Any]) -> None:
        restore(server, latest, self.push_timeout)

    def close(self) -> None:
        """Unload the adapters, of which servers that go on would keep names without files, and delete the files."""
        for server in self.servers:
            if server.health():
                with suppress(PostrlError):  # it may end at this moment, with all that it holds
                    serve_adapters(server, {})
        super().close()


def restore(server: VLLMServer, latest: dict[str, Any], timeout: float) -> None:
    """All adapters that a pointer names."""
    serve_adapters(server, latest["adapters"], timeout)


def serve_adapters(server: VLLMServer, adapters: Mapping[str, str], timeout: float = 600.0) -> None:
    """Bring a server to exactly these adapters, name -> folder. Adapters under names that are not ours stay.

    Raises:
        ServerError: it does not take one of them.
    """
    held = {name: path for name, path in server.adapters().items() if name.startswith(ADAPTER_PREFIX)}
    for name, path in adapters.items():
        if name in held and held[name] != path:  # of an earlier run, or the same version once more
            server.unload_adapter(name)
        if held.get(name) != path:
            _load(server, name, path, timeout)
    for name in held.keys() - adapters.keys():
        server.unload_adapter(name)


def _load(server: VLLMServer, name: str, path: str, timeout: float) -> None:
    try:
        server.load_adapter(name, path, timeout)
    except ServerError as error:
        hint = "--weight-sync merge pushes the adapter merged into all weights, which every server takes"
        raise ServerError(f"{server.url} does not take the adapter {name}: {error.message}", hint=hint) from error
