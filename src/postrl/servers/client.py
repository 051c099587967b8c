"""The HTTP client of one vLLM server: completions for the rollout worker, admin calls for weight sync.

    server = VLLMServer("http://127.0.0.1:8000", token=os.environ.get("POSTRL_SERVER_TOKEN"))
    server.wait_until_healthy(900)
    async with generation_client() as client:
        completion = await server.generate(client, [1, 9, 2], seed=7, temperature=1.0, max_tokens=64, timeout=600)

Tokens in, tokens out: there is no text between the two sides, so nothing is ever tokenised again. Every call has a
deadline; what goes wrong is a `ServerError` or a `WaitTimeout` that names the server, the route and what came back.
The server needs VLLM_SERVER_DEV_MODE=1 (pause, weights), --enable-scale-out (/inference/v1/generate) and
--logprobs-mode processed_logprobs. No torch here: the launcher uses this module.
"""

from __future__ import annotations

import asyncio
import functools
import math
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from postrl.errors import RequestRefused, ServerError, WaitTimeout
from postrl.servers.api import (
    GENERATE,
    LOAD_ADAPTER,
    MODELS,
    PASSING,
    UNKNOWN_MODEL,
    ServerMetrics,
    excerpt,
    parse_completion,
    parse_logp,
    parse_metrics,
    parse_version,
    request_body,
    sampling_params,
    way_out,
)
from postrl.types import Sampled

PauseMode = Literal["keep", "wait", "abort"]
T = TypeVar("T")


def generation_client() -> httpx.AsyncClient:
    """The client to call `VLLMServer.generate` with, shared by all requests of an event loop.

    One connection per request: closing it is how a request is cancelled, and none can go stale between two requests.
    No proxy and no bound on connections, because waiting for one would count against a completion's deadline.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(None, connect=30.0)
    return httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, verify=_certificates())


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes 50 ms, and the rollout worker opens a client for each group of completions."""
    return httpx.create_ssl_context(trust_env=False)


class VLLMServer:
    """One vLLM server at `url`.

    Args:
        token: its POSTRL_SERVER_TOKEN, where it has one.
        lost_file: there once the run has given the server up, see `postrl.servers.lost`.
        prioritises: it was started with --scheduling-policy priority, so that `score` need not wait behind completions.
    """

    def __init__(
        self, url: str, *, token: str | None = None, lost_file: Path | None = None, prioritises: bool = False
    ) -> None:
        self.url = url.rstrip("/")
        self.prioritises = prioritises
        self._lost_file = lost_file
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(
            base_url=self.url, headers=self._headers, limits=limits, trust_env=False, verify=_certificates()
        )

    def __repr__(self) -> str:
        return f"VLLMServer({self.url!r})"

    def close(self) -> None:
        self._client.close()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> str:
        """Why the run has given this server up; empty while it is in use."""
        try:
            return self._lost_file.read_text(encoding="utf-8") if self._lost_file else ""
        except FileNotFoundError:
            return ""

    def health(self, timeout: float = 5.0) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            return self._client.get("/health", timeout=timeout).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until_healthy(self, deadline_s: float, alive: Callable[[], bool] | None = None) -> None:
        """Wait until `health()`, for `deadline_s` seconds at most, or until `alive`, called between the tries, says no (or
        raises): the process is gone.

        Raises:
            WaitTimeout: not healthy within the deadline.
            ServerError: `alive` said no, or the run has given the server up.
        """
        end = time.monotonic() + deadline_s
        while not self.health():
            if reason := self.lost:
                raise ServerError(f"{self.url} was given up: {reason}")
            if alive is not None and not alive():
                raise ServerError(f"{self.url}: the server's process ended before it answered", hint="see its log")
            if time.monotonic() > end:
                raise WaitTimeout(f"{self.url}/health did not answer with 200 within {deadline_s:g} s")
            time.sleep(0.2)

    def server_info(self) -> dict[str, Any]:
        """vLLM's configuration ("vllm_config"), its VLLM_ variables ("vllm_env") and the host's ("system_env")."""
        # The first call makes the server collect facts about its host, which takes seconds.
        return self._ask("GET", "/server_info", dict, params={"config_format": "json"}, timeout=120)

    def world_size(self) -> int:
        """Number of worker processes: tensor x pipeline x data parallel."""
        return self._field("GET", "/get_world_size", "world_size", int)

    def weight_info(self) -> int:
        """Version of the weights it serves; -1: not ours."""
        return parse_version(self._field("GET", "/weight_info", "weight_version", str))

    def checksums(self) -> dict[str, str]:
        """SHA-256 of every parameter, by rank and vLLM's own parameter name. Parameters only: a packed copy of an LM
        head that was left at old weights does not show here."""
        return self._field("POST", "/weight_checker", "checksums", dict, json={"action": "checksum"}, timeout=600)

    def metrics(self, timeout: float = 60.0) -> ServerMetrics:
        """The numbers of /metrics that a run reports."""
        return parse_metrics(self._call("GET", "/metrics", timeout=timeout).text)

    def is_paused(self) -> bool:
        return self._field("GET", "/is_paused", "is_paused", bool)

    # -- weights -----------------------------------------------------------------------------------------------------

    def pause(self, mode: PauseMode = "keep", clear_cache: bool = True, timeout: float = 60.0) -> None:
        """Stop generating; new requests wait in the server.

        Args:
            mode: requests in flight are kept and go on after `resume`, waited for, or aborted (they answer at once
                with what they have).
            clear_cache: drop keys and values, so that kept requests are recomputed under the next weights. Always sent:
                vLLM documents it as ignored with "keep", and acts on it.
        """
        self._call("POST", "/pause", params={"mode": mode, "clear_cache": str(clear_cache).lower()}, timeout=timeout)

    def resume(self) -> None:
        self._call("POST", "/resume")

    def init_weight_transfer(self, info: dict[str, Any], timeout: float = 300.0) -> None:
        self._call("POST", "/init_weight_transfer_engine", json={"init_info": info}, timeout=timeout)

    def start_weight_update(self) -> None:
        self._call("POST", "/start_weight_update")

    def update_weights(self, info: dict[str, Any], timeout: float = 600.0) -> None:
        """Load weights. An error leaves the server unusable (part of a model, paused): restart it."""
        self._call("POST", "/update_weights", json={"update_info": info}, timeout=timeout)

    def finish_weight_update(self, version: int) -> None:
        self._call("POST", "/finish_weight_update", json={"weight_version": str(version)}, timeout=300)

    # -- adapters ----------------------------------------------------------------------------------------------------

    def adapters(self) -> dict[str, str]:
        """The LoRA adapters that requests can name: name -> folder."""

        def parse(answer: Any) -> dict[str, str]:
            return {card["id"]: card["root"] for card in answer["data"] if card.get("parent")}

        return self._ask("GET", MODELS, parse)

    def load_adapter(self, name: str, path: str, timeout: float = 600.0) -> None:
        """Take an adapter in peft's format from `path`; what runs meanwhile goes on."""
        self._call("POST", LOAD_ADAPTER, json={"lora_name": name, "lora_path": path}, timeout=timeout)

    def unload_adapter(self, name: str) -> None:
        """No request can name it any more; those that did go on."""
        self._call("POST", "/v1/unload_lora_adapter", json={"lora_name": name})

    # -- tokens ------------------------------------------------------------------------------------------------------

    async def generate(
        self,
        client: httpx.AsyncClient,
        prompt_ids: Sequence[int],
        *,
        seed: int,
        temperature: float,
        max_tokens: int,
        stop: Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        timeout: float = 600.0,
        model: str | None = None,
        cache_salt: str | None = None,
    ) -> Sampled:
        """One completion of the model's full distribution at `temperature`; to cancel the task cancels the request.

        Args:
            client: see `generation_client`.
            seed: 0 .. 2**63 - 1. The same seed gives the same tokens only on the same batch shapes and weights.
            temperature: 0 to 2, vLLM takes no more; 0 is greedy, and its log-probs are those at temperature 1.
            max_tokens: most tokens of the completion.
            stop: texts that end it; special tokens may be part of them. The tokens of the text are part of the result.
            stop_token_ids: tokens that end it, beside the model's own end-of-sequence tokens.
            timeout: seconds for the whole request, the wait in the server's queue included.
            model: name of a LoRA adapter; default: the served model.
            cache_salt: keys and values are shared only with requests of the same one.

        Raises:
            WaitTimeout: no answer in time.
            RequestRefused: the server will not answer this request, now or later.
            ServerError: the server is gone, failed, or answered something else than a completion.
        """
        sampling = sampling_params(seed, temperature, max_tokens, stop, stop_token_ids)
        body = request_body(prompt_ids, sampling, model=model, cache_salt=cache_salt)
        try:
            async with asyncio.timeout(timeout):
                response = await client.post(self.url + GENERATE, json=body, headers=self._headers)
        except (TimeoutError, httpx.HTTPError) as error:
            raise self._failure(GENERATE, timeout, error) from error
        return self._parse(GENERATE, self._check(GENERATE, response), parse_completion)

    def score(
        self, token_ids: Sequence[int], start: int, timeout: float = 600.0, *, model: str | None = None
    ) -> list[float]:
        """Log-probs of token_ids[start:], each given all tokens before it, under the weights that the server holds.

        At temperature 1, whatever --logprobs-mode says of processed or raw: no sampling processor touches prompt
        tokens. The prefix cache is not read for such a request, so keys and values of old weights cannot slip in.
        One token less than the context length fits, because vLLM insists on generating one.

        Args:
            token_ids: T tokens.
            start: 1 .. T - 1; the first token has no log-prob.
            model: name of a LoRA adapter; default: the served model.

        Returns:
            T - start floats; NaN where the server gave none.
        """
        if not 1 <= start < len(token_ids):
            raise ValueError(f"start is {start}, expected 1 to {len(token_ids) - 1}")
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        body = request_body(token_ids, sampling, model=model, priority=-1 if self.prioritises else None)

        def parse(answer: Any) -> list[float]:
            rows = answer["prompt_logprobs"]
            if len(rows) != len(token_ids):
                raise ValueError(f"{len(rows)} prompt_logprobs for {len(token_ids)} tokens")
            return [parse_logp(rows[i][str(token_ids[i])]) for i in range(start, len(token_ids))]

        return self._ask("POST", GENERATE, parse, json=body, timeout=timeout)

    def probe(self) -> None:
        """Generate one token. Raises ServerError when it comes without log-probs or weight versions."""
        body = request_body([0], sampling_params(seed=0, temperature=1.0, max_tokens=1))
        completion = self._ask("POST", GENERATE, parse_completion, json=body, timeout=120)
        if not completion.version_spans or any(math.isnan(logp) for logp in completion.logps):
            raise ServerError(f"a probe request came back without log-probs or weight versions: {completion}")

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _call(self, method: str, route: str, *, timeout: float = 60.0, **request: Any) -> httpx.Response:
        try:
            response = self._client.request(method, route, timeout=timeout, **request)
        except httpx.HTTPError as error:
            raise self._failure(route, timeout, error) from error
        return self._check(route, response)

    def _ask(self, method: str, route: str, parse: Callable[[Any], T], **request: Any) -> T:
        return self._parse(route, self._call(method, route, **request), parse)

    def _field(self, method: str, route: str, name: str, kind: type[T], **request: Any) -> T:
        value = self._ask(method, route, lambda answer: answer[name], **request)
        if not isinstance(value, kind):
            raise ServerError(f"{self.url}{route} answered {name} = {value!r}, expected {kind.__name__}")
        return value

    def _check(self, route: str, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        message = f"{self.url}{route} answered HTTP {response.status_code}: {excerpt(response.text)}"
        if response.status_code == 404 and UNKNOWN_MODEL in response.text:  # a restarted server gets its adapters back
            raise ServerError(message)
        kind = RequestRefused if response.is_client_error and response.status_code not in PASSING else ServerError
        raise kind(message, hint=way_out(route, response.status_code))

    def _parse(self, route: str, response: httpx.Response, parse: Callable[[Any], T]) -> T:
        try:
            return parse(response.json())
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise ServerError(
                f"{self.url}{route} answered what is not an answer of vLLM ({detail}): {excerpt(response.text)}"
            ) from error

    def _failure(self, route: str, timeout: float, error: Exception) -> ServerError | WaitTimeout:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return WaitTimeout(f"{self.url}{route} did not answer within {timeout:g} s")
        return ServerError(f"{self.url}{route} cannot be reached ({type(error).__name__}: {error})")
