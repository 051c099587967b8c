"""A stand-in for a vLLM server: real HTTP, no model. For what a real one does only when it breaks."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


def completion_answer(**changes: Any) -> dict[str, Any]:
    """What vLLM answers to a request for one completion of three tokens."""
    choice = {
        "index": 0,
        "token_ids": [5, 6, 2],
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -9999.0}, {"logprob": -0.25}]},
        "finish_reason": "stop",
        "weight_versions": [{"version": "0", "start": 0, "end": 2}, {"version": "1", "start": 2, "end": 3}],
    }
    return {"choices": [choice | changes]}


class FakeVLLM:
    """Answers the admin routes like vLLM. `answers[route] = (status, text)` overrides one; `calls` lists what came.

    with FakeVLLM() as fake: VLLMServer(fake.url).pause()
    """

    def __init__(self, port: int = 0) -> None:
        self.version = "default"
        self.paused = self.updating = False
        self.adapters: dict[str, str] = {}
        self.answers: dict[str, tuple[int, str]] = {}
        self.delays: dict[str, float] = {}
        self.calls: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> FakeVLLM:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def routes(self) -> list[str]:
        return [route for route, _ in self.calls]

    def answer(self, route: str, body: Any) -> tuple[int, str]:
        self.calls.append((route, body))
        time.sleep(self.delays.get(route, 0))
        if route in self.answers:
            return self.answers[route]
        if route in ("/pause", "/resume"):
            self.paused = route == "/pause"
        if route in ("/start_weight_update", "/finish_weight_update"):
            if self.updating == (route == "/start_weight_update"):
                return 500, "one update at a time"
            self.updating = not self.updating
        if route == "/finish_weight_update":
            self.version = body["weight_version"]
        if route in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            return self.adapter(route, body["lora_name"], body.get("lora_path"))
        models = [("policy", "/model", None), *((name, path, "policy") for name, path in self.adapters.items())]
        data = [{"id": name, "root": root, "parent": parent} for name, root, parent in models]
        return 200, json.dumps({"weight_version": self.version, "is_paused": self.paused, "data": data})

    def adapter(self, route: str, name: str, path: str | None) -> tuple[int, str]:
        if path is None:
            return (200, "removed") if self.adapters.pop(name, None) else (404, '{"error": {"type": "NotFoundError"}}')
        if name in self.adapters:
            return 400, '{"error": {"message": "has already been loaded"}}'
        self.adapters[name] = path
        return 200, "added"

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, text = fake.answer(urlsplit(self.path).path, body)
                with suppress(OSError):  # the client may have given up
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        return Handler
