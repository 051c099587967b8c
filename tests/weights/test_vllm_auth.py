"""The middleware alone; tests/weights/test_vllm_server.py asks a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postrl.weights.vllm_auth import RequireToken


def passes(path: str, authorization: bytes | None = None, kind: str = "http") -> bool:
    """Whether a request reaches the application behind the middleware."""
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if authorization is None else [(b"host", b"x"), (b"authorization", authorization)]
    asyncio.run(RequireToken(app)({"type": kind, "path": path, "headers": headers}, None, send))  # type: ignore[arg-type]
    if not reached:
        assert sent[0].get("status", sent[0].get("code")) in (401, 1008)
    return bool(reached)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTRL_SERVER_TOKEN", "s3cret")


@pytest.mark.usefixtures("token")
def test_only_the_whole_token_opens() -> None:
    assert passes("/pause", b"Bearer s3cret") and passes("/pause", b"bearer s3cret")
    for wrong in (None, b"", b"Bearer", b"Bearer s3cre", b"Bearer s3cret2", b"Basic s3cret", b"s3cret", b"Bearer \xff"):
        assert not passes("/pause", wrong)


@pytest.mark.usefixtures("token")
def test_health_is_open_and_nothing_that_looks_like_it() -> None:
    assert passes("/health")
    for path in ("/health/", "/health/../pause", "//health", "/healthy", "/v1/models", "/"):
        assert not passes(path)


@pytest.mark.usefixtures("token")
def test_websockets_are_closed_and_the_start_of_the_server_is_not() -> None:
    assert not passes("/v1/realtime", kind="websocket")

    async def start() -> list[str]:
        seen = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])

        await RequireToken(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
        return seen

    assert asyncio.run(start()) == ["lifespan"]


def test_without_a_token_in_its_environment_the_server_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTRL_SERVER_TOKEN", raising=False)
    assert passes("/pause")
