"""The canary: does a server compute with the weights that were pushed to it?

A server can say the right version, generate fluently and be wrong (a packed LM head left at old weights, half an
update, another run's push). Only log-probs show it. The learner and every server score the same fixed texts after each
push, and the *change* of the server's log-probs is compared with the change of the learner's. What the trainer does
(`postrl.weights.sync.ServerSync`), with fixed texts of 16 to 64 scored tokens each:

- `calibrate` after push 0: the noise between learner and sampler;
- once, before the first rollout, push weights under a `perturbation`, the smallest whose log-probs are `visible`, under a
  version that is nobody's, and `check` with `every_tensor`; then push 0 again, and `check`;
- `check` after the push of each version.

The learner must see the weights as the servers got them, so both compute in the same dtype. Small updates move log-probs less
than the noise of bfloat16: the checks of single versions mean much in float32 and little in bfloat16; the perturbed push is
what proves a bfloat16 server, and the comparison with push 0 what notices a drift. Checksums read all weights of a server
(about a second per GB), so they are asked for once. They must all change with the perturbed push, and be those of the first
push 0 after the second.

LoRA adapters are checked the same way under the names they are loaded by (`scores(version, model=...)`); only the
adapter's parameters are perturbed. They have no checksums: vLLM sums up the parameters of the model, and those stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postrl.errors import CanaryError, ServerError, WaitTimeout
from postrl.servers.client import VLLMServer
from postrl.weights.transport import fell, holds, on_each

if TYPE_CHECKING:
    import torch

Logps = Sequence[Sequence[float]]
"""Per pair, the log-probs of token_ids[start:]."""

FLOOR = 1e-3
"""Nats. Learner and sampler may differ this much even where calibration saw less."""

MARGIN = 3.0
"""The tolerance is this many times the noise seen at calibration."""

SLACK = 0.1
"""Share of a change that may be missing on top: the noise grows with it. A stale head misses about half."""

MOST_NOISE = 0.5
"""Nats, the mean over tokens. More at push 0 is not noise: server and learner have different weights."""

FAR = 5.0
"""A perturbation is visible when it moves the learner's log-probs by this many tolerances."""

PERTURBATIONS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Relative sizes to try, the smallest visible one is pushed."""

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing: vLLM on CPUs gives up a layer's plain weights once they are packed, and checksums what is left."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What a check saw, in nats; a root mean square over the tokens unless it says otherwise."""

    deviation: float
    """Difference between a server's change and the learner's; of the worst server."""
    largest: float
    """The same for the worst token."""
    change: float
    """Change of the learner's log-probs since the last check."""
    tolerance: float
    """A larger deviation (plus SLACK times the change) stops the run."""


@dataclass(frozen=True, slots=True)
class _State:
    """What learner and servers said after one push."""

    version: int
    learner: list[float]
    servers: dict[str, list[float]]


class Canary:
    """Compares servers with the learner; the module's docstring shows the protocol.

    Args:
        pairs: (token_ids, start): the fixed texts; tokens from `start` on are scored.
        servers: the samplers, for `scores` and `checksums`.
    """

    def __init__(self, pairs: Sequence[tuple[Sequence[int], int]], servers: Sequence[VLLMServer] = ()) -> None:
        self.pairs = list(pairs)
        self.servers = list(servers)
        self.tolerance = math.nan
        self._first: _State | None = None
        self._last: _State | None = None
        self._checksums: dict[str, tuple[int, dict[str, str]]] = {}
        self._first_checksums: dict[str, tuple[int, dict[str, str]]] = {}

    # -- asking the servers ------------------------------------------------------------------------------------------

    def scores(self, version: int | None = None, *, model: str | None = None) -> dict[str, Logps]:
        """Log-probs of all pairs by server URL.

        Args:
            version: what was pushed. A server that fell since, and is down or back with other weights, is left out; the
                next push reaches it again. None: every server must answer.
            model: name of the LoRA adapter that was pushed; None: the weights themselves were.
        """
        found: dict[str, Logps] = {}

        def ask(server: VLLMServer) -> None:
            try:
                if version is None or holds(server, version, model):
                    found[server.url] = [server.score(ids, start, model=model) for ids, start in self.pairs]
            except (ServerError, WaitTimeout):
                if version is None or not fell(server, version, model):
                    raise

        on_each(self.servers, ask)
        return found

    def checksums(self) -> dict[str, dict[str, str]]:
        """Checksums of all parameters by server URL."""
        found: dict[str, dict[str, str]] = {}
        on_each(self.servers, lambda server: found.update({server.url: server.checksums()}))
        return found

    # -- comparing ---------------------------------------------------------------------------------------------------

    def calibrate(
        self, learner: Logps, servers: Mapping[str, Logps], checksums: Mapping[str, Mapping[str, str]] | None = None
    ) -> CanaryReport:
        """Measure the noise after push 0, and derive the tolerance from it.

        Raises:
            CanaryError: a server is so far from the learner that it cannot hold the same weights.
        """
        state, noise, largest = _state(0, learner, servers), 0.0, 0.0
        for url, logps in state.servers.items():
            differences = _changes(logps, state.learner)
            if (found := _rms(differences)) > MOST_NOISE:
                raise CanaryError(
                    f"{url}: after push 0 its log-probs differ from the learner's by {found:.3g} nats per token, expected "
                    f"less than {MOST_NOISE}",
                    hint="check that it serves the same model and dtype, with --logprobs-mode processed_logprobs",
                )
            noise, largest = max(noise, found), max(largest, _largest(differences))
        self.tolerance = max(FLOOR, MARGIN * noise)
        self._first = self._last = state
        if checksums is not None:
            self._compare_checksums(0, checksums)
        return CanaryReport(noise, largest, 0.0, self.tolerance)

    def visible(self, learner: Logps) -> bool:
        """Whether the learner's log-probs are so far from the last ones that a server that did not follow is found."""
        return _rms(_changes(_flat(learner), self._previous().learner)) >= FAR * self.tolerance

    def check(
        self,
        version: int,
        learner: Logps,
        servers: Mapping[str, Logps],
        checksums: Mapping[str, Mapping[str, str]] | None = None,
        *,
        every_tensor: bool = False,
    ) -> CanaryReport:
        """Compare after a push.

        Args:
            version: the one that was pushed.
            learner, servers: log-probs of the pairs under the pushed weights; of the servers that were asked.
            checksums: by server; compared across servers and with those seen before: equal for the same version,
                else not.
            every_tensor: all weights were changed, so every checksum must be another one.

        Raises:
            CanaryError: a server does not hold the pushed weights.
        """
        last, first = self._previous(), self._first
        assert first is not None
        state = _state(version, learner, servers)
        change, deviation, largest = _rms(_changes(state.learner, last.learner)), 0.0, 0.0
        for url, logps in state.servers.items():
            for earlier in (last, first):
                if url not in earlier.servers:  # it was down then; the first push proved every server
                    continue
                wanted = _changes(state.learner, earlier.learner)
                found = _changes(logps, earlier.servers[url])
                off = _changes(found, wanted)
                if _rms(off) > self.tolerance + SLACK * _rms(wanted):
                    raise CanaryError(self._story(url, version, earlier, off, wanted, found), hint=HINT)
                deviation, largest = max(deviation, _rms(off)), max(largest, _largest(off))
        if checksums is not None:
            self._compare_checksums(version, checksums, changed=change > FLOOR, every_tensor=every_tensor)
        self._last = state
        return CanaryReport(deviation, largest, change, self.tolerance)

    def _previous(self) -> _State:
        if self._last is None:
            raise ValueError("calibrate the canary first")
        return self._last

    def _story(
        self, url: str, version: int, earlier: _State, off: list[float], wanted: list[float], found: list[float]
    ) -> str:
        if _rms(found) <= self.tolerance:
            meaning = "it did not move: it still computes with the weights it had"
        elif _rms(wanted) <= self.tolerance:
            meaning = "it moved and the learner did not: it got other weights, or a part of an update"
        else:
            meaning = "it followed in part: a stale LM head, or half an update"
        return (
            f"{url} does not hold the weights of version {version}. Since version {earlier.version} its log-probs changed by "
            f"{_rms(found):.3g} nats per token and the learner's by {_rms(wanted):.3g}; they are {_rms(off):.3g} apart "
            f"(largest deviation {_largest(off):.3g}), expected at most {self.tolerance + SLACK * _rms(wanted):.3g}. "
            f"Likely, {meaning}."
        )

    def _compare_checksums(
        self,
        version: int,
        checksums: Mapping[str, Mapping[str, str]],
        *,
        changed: bool = False,
        every_tensor: bool = False,
    ) -> None:
        seen: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
        for url, sums in checksums.items():
            now = {name: digest for name, digest in sums.items() if digest != EMPTY}
            # Only servers that are split over devices alike have the same names.
            other_url, other = seen.setdefault(tuple(now), (url, now))
            if different := [name for name in now if now[name] != other[name]]:
                raise CanaryError(
                    f"{url} and {other_url} differ after the push of version {version}: {_names(different)}", hint=HINT
                )
            last_version, last = self._checksums.get(url, (version, now))
            same = [name for name in now if last.get(name) == now[name]]
            if last_version != version and ((len(same) == len(now) and changed) or (same and every_tensor)):
                raise CanaryError(f"{url} kept old weights at the push of version {version}: {_names(same)}", hint=HINT)
            first_version, first = self._first_checksums.setdefault(url, (version, now))
            if first_version == version and now != first:
                different = [name for name in now if first.get(name) != now[name]]
                raise CanaryError(
                    f"{url} has other weights than at the first push of version {version}: {_names(different)}",
                    hint=HINT,
                )
            self._checksums[url] = version, now


HINT = "restart the server; if it happens again, keep the server's log and report it"


@contextmanager
def perturbation(parameters: Iterable[torch.nn.Parameter], size: float, seed: int = 0) -> Iterator[None]:
    """Inside, every parameter is visibly changed in place: by noise of `size` times its own root mean square.

    Afterwards all are as before, to the bit. Shards (DTensor) are changed where they lie, replicas alike; memory: one
    copy of this rank's shards in main memory.
    """
    import torch

    def local(parameter: torch.nn.Parameter) -> torch.Tensor:
        tensor = parameter.detach()
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    tensors = [local(parameter) for parameter in parameters]
    saved = [tensor.to("cpu", copy=True) for tensor in tensors]
    try:
        for i, tensor in enumerate(tensors):
            generator = torch.Generator(device=tensor.device).manual_seed(seed + i)
            noise = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
            scale = tensor.float().square().mean().sqrt()
            # A bias that is still zero has no size of its own.
            tensor.add_((size * noise * torch.where(scale > 0, scale, 1.0)).to(tensor.dtype))
        yield
    finally:
        for tensor, original in zip(tensors, saved, strict=True):
            tensor.copy_(original)


def _state(version: int, learner: Logps, servers: Mapping[str, Logps]) -> _State:
    flat = _flat(learner)
    for url, logps in servers.items():
        if [len(row) for row in logps] != [len(row) for row in learner] or not flat:
            raise ValueError(
                f"{url} scored {[len(row) for row in logps]} tokens, the learner {[len(row) for row in learner]}"
            )
        if not all(map(math.isfinite, _flat(logps))):
            raise CanaryError(
                f"{url} gave a text no log-prob after the push of version {version}: its weights hold NaN or infinity",
                hint=HINT,
            )
    return _State(version, flat, {url: _flat(logps) for url, logps in servers.items()})


def _flat(logps: Logps) -> list[float]:
    return [logp for row in logps for logp in row]


def _changes(now: Sequence[float], before: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(now, before, strict=True)]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _largest(values: Iterable[float]) -> float:
    return max((abs(value) for value in values), default=0.0)


def _names(names: Iterable[str], most: int = 5) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
