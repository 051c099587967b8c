"""JSON over HTTP with a deadline and retries, for rewards that ask a server.

endpoint = Endpoint("http://127.0.0.1:8000/v1", key=key_from("JUDGE_KEY", "judge.api_key_env"))
async with endpoint.client() as client:
    text = await endpoint.ask(client, "/chat/completions", lambda: body, lambda reply: reply["choices"][0])
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from postrl.errors import RewardError, UsageError

T = TypeVar("T")

PASSING = (408, 409, 425, 429)
"""Statuses of a client's error that pass: too slow, in conflict, too early, too many."""
FIRST_PAUSE = 0.5
"""Seconds before the second try, twice as many before each further one, a random part of them left out."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries at most, also where the server asks for more."""
LONGEST_TEXT = 300
"""Characters of an answer that an error shows."""


class Refused(RewardError):
    """The server understood the request and refuses it: asking again changes nothing."""


class Unanswered(RewardError):
    """No usable answer after the last try."""


class _Passing(Exception):
    """What the next try may not meet again."""

    def __init__(self, problem: str, pause: float = 0.0) -> None:
        super().__init__(problem)
        self.pause = pause


@dataclass(frozen=True)
class Endpoint:
    """A server that answers JSON with JSON."""

    url: str
    """Up to where the paths begin, such as https://api.example.com/v1."""
    key: str = field(default="", repr=False)
    """Sent as a bearer token; never shown."""
    timeout: float = 30.0
    """Seconds one request may take, its whole answer included."""
    retries: int = 2
    """Tries after the first one."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.timeout > 0 or self.retries < 0:
            raise UsageError(
                f"timeout = {self.timeout:g} and retries = {self.retries}",
                hint="seconds above 0, and 0 retries or more",
            )

    @property
    def longest(self) -> float:
        """Seconds that an answer may take with all tries."""
        return (self.retries + 1) * self.timeout + self.retries * LONGEST_PAUSE

    def client(self) -> httpx.AsyncClient:
        """For the requests of one call; close it. A proxy of the environment is not for servers on this host."""
        local = httpx.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(headers=headers, timeout=self.timeout, trust_env=not local)

    async def ask(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: Callable[[], Any],
        read: Callable[[Any], T],
        turn: AbstractAsyncContextManager[Any] | None = None,
    ) -> T:
        """POST a body (GET where it is None) and read the answer; again after a pause when there is none to be had.

        Args:
            body: the JSON to send, made anew for each try.
            read: of the answer's JSON; a ValueError, KeyError, IndexError or TypeError of its own is a failed try.
            turn: held during a request and not between two tries, to bound how many are on their way.

        Raises:
            Refused: the server refuses the request.
            Unanswered: there was no usable answer to the last try.
        """
        pause = FIRST_PAUSE
        for tries in range(1, self.retries + 2):
            try:
                async with turn or nullcontext():
                    return _readable(read, await self._once(client, path, body()))
            except _Passing as failure:
                if tries > self.retries:
                    often = f" ({tries} tries)" if tries > 1 else ""
                    raise Unanswered(f"{self.url}{path}: {failure}{often}") from None
                await asyncio.sleep(min(LONGEST_PAUSE, max(pause * random.uniform(0.5, 1.0), failure.pause)))
                pause *= 2
        raise AssertionError("unreachable")

    async def _once(self, client: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
        """One request's answer, if it is one."""
        method = "GET" if body is None else "POST"
        try:
            async with asyncio.timeout(self.timeout):  # httpx has one for each read, and an answer may come in drops
                response = await client.request(method, f"{self.url}{path}", json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise _Passing(f"no answer within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise _Passing(self._hidden(str(error) or type(error).__name__)) from None
        if response.is_success:
            return response
        problem = f"HTTP {response.status_code}: {self._hidden(response.text)[:LONGEST_TEXT].strip()}"
        if response.status_code in PASSING or response.status_code >= 500:
            raise _Passing(problem, _asked_pause(response))
        raise Refused(f"{self.url}{path}: {problem}")

    def _hidden(self, text: str) -> str:
        """A text that someone else wrote, without the key."""
        return text.replace(self.key, "***") if self.key else text


def check_url(text: str) -> None:
    """Refuse what is not an address, and a password in one: it would be shown in errors, and stored with the settings.

    Raises:
        UsageError: text is such.
    """
    if "@" in text.rpartition("//")[2].partition("/")[0]:
        raise UsageError("url holds a user name or a password", hint="leave them out, and name a key with api_key_env")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"url = {text!r} is not an address", hint="write it as http://127.0.0.1:8000/v1")


def key_from(variable: str, option: str) -> str:
    """The key that an environment variable holds; "" where no variable is named.

    Args:
        option: what named it, for errors; they show no value that could be a key.

    Raises:
        UsageError: that is no name of a variable, it is not set, or its value cannot be sent.
    """
    if not variable:
        return ""
    if not isinstance(variable, str) or not re.fullmatch("[A-Z_][A-Z0-9_]{0,63}", variable):
        raise UsageError(
            f"{option} is not the name of an environment variable (capitals, digits and _)",
            hint=f"export JUDGE_API_KEY=..., and {option}=JUDGE_API_KEY: a key itself does not belong into settings",
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"{option} is {variable}, and that variable is not set", hint=f"export {variable}=...")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{variable} holds characters that cannot be sent", hint=f"export {variable}=... anew")
    return key


def _readable(read: Callable[[Any], T], response: httpx.Response) -> T:
    try:
        return read(response.json())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise _Passing(f"an answer that cannot be used: {error}"[:LONGEST_TEXT]) from None


def _asked_pause(response: httpx.Response) -> float:
    """Seconds that the server asks to wait, where it says so as a number."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch("[0-9]{1,6}", text) else 0.0
