"""A stand-in for a judge, on this machine: to try things out without a model, and for the tests.

    python local_judge.py postrl grpo --config config.yaml      runs a command beside it, with JUDGE_URL set

It is no judge: the shorter an answer, the better the grade. It speaks as an OpenAI-compatible endpoint does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "a-key"


class Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions. `server.replies` holds (status, content) to send instead of a grade."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.send(401, {"error": {"message": "wrong key"}})
        answer = re.search(r"<answer>\n(.*)\n</answer>", body["messages"][-1]["content"], re.DOTALL)
        words = len(answer[1].split()) if answer else 0
        status, content = 200, json.dumps({"grade": max(0, 10 - words // 2)})
        if self.server.replies:
            status, content = self.server.replies.pop(0)
        self.send(status, {"choices": [{"message": {"role": "assistant", "content": content}}]})

    def send(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.requests: list[dict[str, Any]] = []
        self.replies: list[tuple[int, str]] = []


@contextmanager
def serving() -> Iterator[Server]:
    """The stand-in, on a free port, until the block ends."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def main(command: list[str]) -> int:
    with serving() as server:
        judge = {"JUDGE_URL": server.url, "JUDGE_MODEL": "stand-in", "JUDGE_API_KEY": KEY}
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which ends in its own way
        return subprocess.call(command, env={**os.environ, **judge})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
