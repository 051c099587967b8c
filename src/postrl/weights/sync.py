"""Weight sync as the loop sees it: `publish(version)` returns when every sampler serves the learner's weights.

With vLLM servers the first publication also proves them: the canary calibrates, pushes visibly perturbed weights once,
and checks every later push (design: `postrl.weights.canary`). Pushed are all weights, adapters merged, or the LoRA
adapter alone, as the servers were started for. The embedded engine shares the learner's weights, or keeps a copy in the
compute dtype where the learner's are sharded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from postrl.errors import CanaryError, PostrlError, ServerError
from postrl.run.waiting import in_thread
from postrl.servers.api import NOT_OURS, adapter_name
from postrl.servers.client import VLLMServer
from postrl.weights.canary import PERTURBATIONS, Canary, perturbation
from postrl.weights.transport import WeightTransport

CANARY_TEXTS = (
    "The quick brown fox jumps over the lazy dog, turns around at the edge of the wood and jumps back again.",
    "To add 47 and 38, first add the ones: 7 + 8 = 15. Write 5, carry 1. Then 4 + 3 + 1 = 8. The answer is 85.",
    "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError('negative')\n    return width * height\n",
    "Dear Ms Novak, thank you for your letter of 3 May. We will gladly send the parts to Brno by the end of the week.",
)
CANARY_START, CANARY_LENGTH = 8, 40
"""Tokens that are given, and all tokens, of each text."""


class Learner(Protocol):
    """Who has the weights: what bringing them to samplers asks of `postrl.learning.learner.Learner`."""

    @property
    def policy(self) -> Any: ...

    @property
    def ranks(self) -> Any: ...

    def weights(self) -> Iterator[tuple[str, Any]]: ...

    def adapter(self) -> Iterator[tuple[str, Any]]: ...

    def score(self, pairs: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]: ...


class WeightSync:
    """A way to bring weights to the samplers. As it is, that of a replay: nothing samples."""

    def publish(self, version: int) -> dict[str, float]:
        """All ranks call it. Returns metrics on rank 0."""
        return {}

    def forget(self) -> None:
        """The samplers have lost the weights: the next `publish` pushes them, whatever the version."""

    def close(self) -> None:
        """Nothing is published any more."""


class EmbeddedSync(WeightSync):
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


class ServerSync(WeightSync):
    """vLLM servers, watched by the canary. Rank 0 talks to them; the other ranks take part in the collectives.

    Args:
        transport: None on the other ranks.
        adapters: whether the LoRA adapter is pushed, by a name for each version; else all weights are.
    """

    def __init__(
        self,
        learner: Learner,
        transport: WeightTransport | None,
        servers: Sequence[VLLMServer],
        tokenizer: Any,
        *,
        adapters: bool = False,
    ) -> None:
        self.learner, self.transport, self.adapters = learner, transport, adapters
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

    def forget(self) -> None:
        self._held = None if self._held is None else NOT_OURS

    def _push(self, version: int) -> None:
        tensors = self.learner.adapter() if self.adapters else self.learner.weights()
        failed: PostrlError | None = None
        try:
            if self.transport is not None:
                self.transport.push(tensors, version)
            else:  # gathering a sharded weight is a collective
                for _ in tensors:
                    pass
        except PostrlError as error:
            failed = error
        if self.learner.ranks.max([float(failed is not None)])[0]:  # before anyone waits in the next collective
            raise failed or ServerError(f"the push of weight version {version} failed on rank 0")

    def _name(self, version: int) -> str | None:
        """What the servers call these weights; None: they are the server's own."""
        return adapter_name(version) if self.adapters else None

    def _checksums(self) -> dict[str, dict[str, str]] | None:
        """Of the model's parameters, which adapters leave as they are."""
        return None if self.adapters else self.canary.checksums()

    def _check(self, version: int) -> float:
        if self.transport is None:
            self.learner.score(self.canary.pairs)
            return 0.0
        # Servers and learner compute at the same time.
        scores = in_thread(lambda: self.canary.scores(version, model=self._name(version)))
        logps = self.learner.score(self.canary.pairs)
        return self.canary.check(version, logps, scores.result()).deviation

    def _prove(self, version: int) -> float:
        """Calibrate, push perturbed weights once, then the true ones again."""
        main = self.transport is not None
        logps = self.learner.score(self.canary.pairs)
        name = self._name(version)
        if main:
            self.canary.calibrate(logps, self.canary.scores(model=name), self._checksums())
        self._push_perturbed(main)
        self._push(version)
        if not main:
            return 0.0
        return self.canary.check(version, logps, self.canary.scores(model=name), self._checksums()).deviation

    def _push_perturbed(self, main: bool) -> None:
        """Visibly other weights, in every tensor that is pushed: each server must follow."""
        parameters = [p for p in self.learner.policy.parameters() if p.requires_grad or not self.adapters]
        for size in PERTURBATIONS:
            with perturbation(parameters, size):
                moved = self.learner.score(self.canary.pairs)
                if self.learner.ranks.max([float(main and self.canary.visible(moved))])[0]:
                    self._push(NOT_OURS)
                    if main:
                        scores = self.canary.scores(model=self._name(NOT_OURS))
                        self.canary.check(NOT_OURS, moved, scores, self._checksums(), every_tensor=True)
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
