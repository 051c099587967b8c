"""How the processes of a run find each other. It travels in the environment: the token never stands in an argv."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

TOKEN = "POSTRL_SERVER_TOKEN"
"""Environment variable of what the servers ask for."""
DISK = "postrl_disk"
"""vLLM's name for our way to bring weights to servers through files."""


@dataclass(frozen=True)
class Connections:
    """Addresses of a run."""

    server_urls: tuple[str, ...] = ()
    """vLLM servers; none: the learner samples itself."""
    token: str | None = None
    """What the servers ask for as a bearer token."""
    worker: str | None = None
    """Address of the rollout worker, `unix:/path` or `tcp:host:port`; None: it runs inside the learner."""
    owned: bool = True
    """Whether the run started the servers (and restarts them); False: they were there before."""
    transport: str = "disk"
    """How weights reach the servers: a row of `postrl.weights.transports`."""
    adapter_rank: int = 0
    """Of the LoRA adapters that they are to hold, where these travel alone."""
    server_dtype: str = "float32"
    """What the servers compute in."""
    model_path: str = ""
    """Where the initial model lies: a folder, or a hub id."""

    def to_env(self) -> dict[str, str]:
        public = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "token"}
        return {"POSTRL_CONNECTIONS": json.dumps(public)} | ({TOKEN: self.token} if self.token else {})

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Connections:
        values = json.loads(env.get("POSTRL_CONNECTIONS", "{}"))
        values["server_urls"] = tuple(values.get("server_urls", ()))
        return cls(**values, token=env.get(TOKEN))
