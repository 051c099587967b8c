"""Weight sync as the loop sees it: `publish(version)` returns when every sampler serves the learner's weights.

With vLLM servers the first publication also proves them: the canary calibrates, pushes visibly perturbed weights once,
and checks every later push (design: `postrl.weights.canary`). The embedded engine shares the learner's weights, or
keeps a copy in the compute dtype where the learner's are sharded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from postrl.config import GRPOConfig
from postrl.connections import Connections
from postrl.errors import CanaryError, ServerError
from postrl.learning.learner import Learner
from postrl.lost_servers import run_servers
from postrl.run_folder import RunFolder
from postrl.servers import NOT_OURS, VLLMServer
from postrl.weights.canary import PERTURBATIONS, Canary, perturbation
from postrl.weights.disk import DiskTransport
from postrl.weights.transport import WeightTransport

CANARY_TEXTS = (
    "The quick brown fox jumps over the lazy dog, turns around at the edge of the wood and jumps back again.",
    "To add 47 and 38, first add the ones: 7 + 8 = 15. Write 5, carry 1. Then 4 + 3 + 1 = 8. The answer is 85.",
    "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError('negative')\n    return width * height\n",
    "Dear Ms Novak, thank you for your letter of 3 May. We will gladly send the parts to Brno by the end of the week.",
)
CANARY_START, CANARY_LENGTH = 8, 40
"""Tokens that are given, and all tokens, of each text."""


class WeightSync(Protocol):
    """What the loop needs of a way to bring weights to the samplers."""

    def publish(self, version: int) -> dict[str, float]:
        """All ranks call it. Returns metrics on rank 0."""
        ...

    def close(self) -> None: ...


class NoSync:
    """Replay: nothing samples."""

    def publish(self, version: int) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return None


class EmbeddedSync:
    """The sampler inside the learner.

    Args:
        copy: a model of the sampler's own to bring up to date; None when it samples from the learner's.
    """

    def __init__(self, learner: Learner, copy: Any = None) -> None:
        self.learner, self.copy = learner, copy
        self.version = 0

    def publish(self, version: int) -> dict[str, float]:
        if self.copy is not None:
            import torch

            held = dict(self.copy.named_parameters())
            with torch.no_grad():
                for name, tensor in self.learner.weights():
                    held[name].copy_(tensor)
        self.version = version
        return {}

    def close(self) -> None:
        return None


class ServerSync:
    """vLLM servers, watched by the canary. Rank 0 talks to them; the other ranks take part in the collectives."""

    def __init__(
        self, learner: Learner, transport: WeightTransport | None, servers: Sequence[VLLMServer], tokenizer: Any
    ) -> None:
        self.learner, self.transport = learner, transport
        self.canary = Canary(canary_pairs(tokenizer), servers)
        self._held: int | None = None

    def publish(self, version: int) -> dict[str, float]:
        """Push unless the servers hold the version already.

        Raises:
            CanaryError: a server does not compute with what was pushed.
            ServerError, WaitTimeout: a push failed.
        """
        if self._held == version:
            return {}
        start = time.monotonic()
        self._push(version)
        seconds = time.monotonic() - start
        deviation = self._prove(version) if self._held is None else self._check(version)
        self._held = version
        return {"weights/push_s": seconds, "weights/canary": deviation}

    def _push(self, version: int) -> None:
        if self.transport is not None:
            self.transport.push(self.learner.weights(), version)
        else:  # gathering a sharded weight is a collective
            for _ in self.learner.weights():
                pass

    def _check(self, version: int) -> float:
        logps = self.learner.score(self.canary.pairs)
        if self.transport is None:
            return 0.0
        return self.canary.check(version, logps, self.canary.scores(version)).deviation

    def _prove(self, version: int) -> float:
        """Calibrate, push perturbed weights once, then the true ones again."""
        main = self.transport is not None
        logps = self.learner.score(self.canary.pairs)
        if main:
            self.canary.calibrate(logps, self.canary.scores(), self.canary.checksums())
        self._push_perturbed(main)
        self._push(version)
        if not main:
            return 0.0
        return self.canary.check(version, logps, self.canary.scores(), self.canary.checksums()).deviation

    def _push_perturbed(self, main: bool) -> None:
        """Visibly other weights, in every tensor: each server must follow."""
        for size in PERTURBATIONS:
            with perturbation(self.learner.policy.parameters(), size):
                moved = self.learner.score(self.canary.pairs)
                if self.learner.ranks.max([float(main and self.canary.visible(moved))])[0]:
                    self._push(NOT_OURS)
                    if main:
                        sums = self.canary.checksums()
                        self.canary.check(NOT_OURS, moved, self.canary.scores(), sums, every_tensor=True)
                    return
        raise CanaryError(
            f"even weights perturbed by {PERTURBATIONS[-1]:g} of their size do not visibly change the log-probs, beside a "
            f"noise of {self.canary.tolerance:.2g} nats between learner and servers",
            hint="the servers' log-probs are too noisy to be trusted: use --dtype float32, or check that they serve this model",
        )

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


def canary_pairs(tokenizer: Any) -> list[tuple[list[int], int]]:
    """The fixed texts as (token ids, start)."""
    return [
        (tokenizer(text, add_special_tokens=False)["input_ids"][:CANARY_LENGTH], CANARY_START) for text in CANARY_TEXTS
    ]


def server_transport(
    config: GRPOConfig, connections: Connections, folder: RunFolder
) -> tuple[WeightTransport, list[VLLMServer]]:
    """The transport that the servers were started for.

    Raises:
        ServerError: a foreign server that does not fit; all mismatches of all servers at once.
    """
    servers = run_servers(connections, folder.weights)
    if not connections.owned:
        problems = [problem for server in servers for problem in _attach_problems(server, config, connections)]
        if problems:
            raise ServerError(
                "the vLLM servers that run already do not fit this run:\n  " + "\n  ".join(problems),
                hint="start them with `postrl serve` and the settings of this run (--print shows the command)",
            )
    if connections.backend == "nccl":
        from postrl.weights.nccl import NcclTransport

        return NcclTransport(servers, connections.server_dtype), servers
    deadline = config.server_start_timeout if connections.owned else 60.0
    return DiskTransport(servers, folder.weights, connections.server_dtype, server_deadline=deadline), servers


def _attach_problems(server: VLLMServer, config: GRPOConfig, connections: Connections) -> Iterator[str]:
    yield from server.attach_problems(
        backend=connections.backend,
        dtype=connections.server_dtype,
        max_model_len=config.max_prompt_length + config.max_completion_length,
    )
