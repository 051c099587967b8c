"""Bringing a restarted server back to what was published last, whichever way it came. No torch: the launcher does it."""

from __future__ import annotations

import json
from pathlib import Path

from postrl.servers.client import VLLMServer
from postrl.weights.disk import POINTER, server_lock
from postrl.weights.lora import serve_adapters
from postrl.weights.transport import swap_weights


def restore(server: VLLMServer, folder: str | Path, *, timeout: float = 600.0) -> int | None:
    """Bring a restarted server to the weights, or to all the adapters, that the pointer in `folder` names.

    Args:
        folder: RUN/weights.
        timeout: seconds to wait for the server's lock, and for it to load.

    Returns:
        The version that was published last; None if nothing was yet, and the server holds what it was started with.

    Raises:
        ServerError: the update failed, or the published file is gone.
    """
    pointer = Path(folder) / POINTER
    if not pointer.exists():
        return None
    with server_lock(pointer.parent, server, timeout):
        latest = json.loads(pointer.read_text(encoding="utf-8"))
        if "adapters" in latest:
            serve_adapters(server, latest["adapters"], timeout)
        else:
            info = {"path": latest["path"]}
            swap_weights(server, latest["version"], lambda: server.update_weights(info, timeout))
    return int(latest["version"])
