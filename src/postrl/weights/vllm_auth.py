"""ASGI middleware that runs inside vLLM's API server: no route without the token, except /health.

vLLM's own `--api-key` guards only paths under /v1, /v2, /inference and /cohere; the routes that pause a server and
replace its weights stay open. `--middleware postrl.weights.vllm_auth.RequireToken` closes them. The token comes from
the environment of the server (`POSTRL_SERVER_TOKEN`), never from its command line, which every user of the host can
read. Without that variable nothing is asked for.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from postrl.run.connections import TOKEN

OPEN_PATHS = ("/health",)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequireToken:
    """Answers 401 to requests without `Authorization: Bearer $POSTRL_SERVER_TOKEN`."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.token = os.environ.get(TOKEN, "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.allows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = json.dumps({"error": f"this server wants the token in its {TOKEN}"}).encode()
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def allows(self, scope: Scope) -> bool:
        if not self.token or scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self.token)
