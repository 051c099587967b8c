"""The sampler inside the trainer process: transformers' forward pass, a KV cache, one batch at a time.

Each prompt is read once and its keys and values are shared out to its completions; completions that have ended leave
the batch. Every completion draws from its own random stream, so what it becomes depends on its seed and on the
weights, not on its neighbours (up to the rounding of batched matrix products).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from postrl.errors import PostrlError, UsageError
from postrl.rollout.sampler import Request, Sampler
from postrl.types import Sampled, VersionSpan

MAX_SEQUENCES = 256
"""Completions in flight at once: bounds the KV cache."""
TURNS = 8
"""Turns of the event loop that tasks take until they have asked: a group's, then those of its completions, then theirs."""
STOP_MARGIN = 8
"""Tokens before a stop text that are decoded with it: a text that begins in the middle may lose its first blank."""


class EmbeddedSampler(Sampler):
    """Samples from a transformers causal language model held in this process. The event loop stands still meanwhile.

    Args:
        model: the causal language model (or peft model) to sample from; switched to eval mode while sampling.
        tokenizer: decodes, for stop texts.
        stop_token_ids: tokens that end a completion, beside those of its request.
        version: gives the weight version that `model` holds now.
    """

    embedded = True

    def __init__(
        self, model: Any, tokenizer: Any, *, stop_token_ids: Sequence[int], version: Callable[[], int]
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_token_ids)
        self._version = version
        self._most = MAX_SEQUENCES
        """Completions at once; fewer after memory ran out."""
        self._asked: list[tuple[Request, asyncio.Future[Sampled]]] = []
        self._serving: asyncio.Task[None] | None = None

    async def sample(self, request: Request) -> Sampled:
        """See `Sampler.sample`. What is asked for in one go is computed in batches of at most MAX_SEQUENCES, in its order.

        Raises:
            UsageError: the model keeps another state than keys and values, which cannot be shared out.
            PostrlError: out of memory with a single completion.
        """
        future: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._asked.append((request, future))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await future

    async def _serve(self) -> None:
        """Answer until nothing is asked. Before each batch the loop goes round: others may ask too, and what the batch
        before has set going (rewards) may start before this one takes over."""
        while self._asked:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            batch, self._asked = self._asked[: self._most], self._asked[self._most :]
            batch = [(request, future) for request, future in batch if not future.done()]  # the others were given up
            try:
                sampled = self._batch([request for request, _ in batch]) if batch else []
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), completion in zip(batch, sampled, strict=True):
                    future.set_result(completion)

    @torch.no_grad()
    def _batch(self, requests: Sequence[Request]) -> list[Sampled]:
        was_training = self._model.training
        self._model.eval()
        try:
            return self._with_room(requests)
        finally:
            self._model.train(was_training)

    def _with_room(self, requests: Sequence[Request]) -> list[Sampled]:
        """One batch; when memory runs out, its halves: what a completion becomes does not depend on its neighbours."""
        try:
            return _Decoding(self._model, self._tokenizer, self._stop_ids, requests, self._version()).run()
        except torch.OutOfMemoryError as error:
            if len(requests) == 1:
                raise PostrlError(
                    f"out of memory in sampling a single completion of at most {requests[0].sampling.max_tokens} tokens",
                    hint="lower --max-completion-length or --max-prompt-length, or use --engine vllm",
                ) from error
        torch.cuda.empty_cache()
        self._most = half = len(requests) // 2
        return [*self._with_room(requests[:half]), *self._with_room(requests[half:])]


class _Decoding:
    """One batch from prefill to the last token. Shapes: B completions, b of them still running, V vocabulary."""

    def __init__(
        self, model: Any, tokenizer: Any, stop_ids: Collection[int], requests: Sequence[Request], version: int
    ) -> None:
        self.model, self.tokenizer, self.version = model, tokenizer, version
        self.requests, self.stop_ids = requests, stop_ids
        self.device = next(model.parameters()).device
        self.limit = max(r.sampling.max_tokens for r in requests)
        self.cut = _Cut.of(requests, self.device)
        self.supports: list[list[list[int]]] = [[] for _ in requests]
        temperatures = [r.sampling.temperature for r in requests]
        self.temperature_B, self.some_greedy = torch.tensor(temperatures, device=self.device), 0 in temperatures
        self.uniform_BT = torch.stack([_uniforms(r.seed, self.limit) for r in requests]).to(self.device)
        self.logps_BT = torch.zeros(len(requests), self.limit, device=self.device)
        self.mask_bL = torch.zeros(len(requests), 0, dtype=torch.long, device=self.device)
        self.completions: list[list[int]] = [[] for _ in requests]
        self.stopped = [False] * len(requests)

    def run(self) -> list[Sampled]:
        logits_bV = self._prefill()
        running = list(range(len(self.requests)))
        rows = torch.arange(len(running), device=self.device)
        for t in range(self.limit):
            if self.cut is not None:
                logits_bV = self.cut(logits_bV, self.temperature_B[rows], rows)
                self._note_support(running, logits_bV)
            tokens_b, logps_b = _draw(logits_bV, self.temperature_B[rows], self.uniform_BT[rows, t], self.some_greedy)
            self.logps_BT[rows, t] = logps_b
            drawn = tokens_b.tolist()  # the one wait for a GPU in a step
            keep = [i for i, row in enumerate(running) if not self._ends(row, drawn[i])]
            if not keep:
                break
            if len(keep) < len(running):
                running = [running[i] for i in keep]
                kept = torch.tensor(keep, device=self.device)
                rows, tokens_b = rows[kept], tokens_b[kept]
                self.cache.batch_select_indices(kept)
                self.mask_bL = self.mask_bL[kept]
            logits_bV = self._step(tokens_b, rows, padded=any(self.padding[row] for row in running))
        return [self._result(i, logps) for i, logps in enumerate(self.logps_BT.tolist())]

    def _prefill(self) -> Tensor:
        """Read every distinct prompt once, left-padded, then give each completion its copy of the cache."""
        from transformers import DynamicCache

        unique: dict[tuple[int, ...], int] = {}
        owner = [unique.setdefault(tuple(r.prompt_ids), len(unique)) for r in self.requests]
        prompts = list(unique)
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        self.cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=ids,
            attention_mask=mask if any(len(prompt) < width for prompt in prompts) else None,
            position_ids=(mask.cumsum(-1) - 1).clamp_(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if not all(hasattr(layer, "batch_select_indices") for layer in self.cache.layers):
            raise UsageError(
                f"engine = transformers cannot sample from {type(self.model).__name__}: not all its layers are attention",
                hint="use --engine vllm",
            )
        rows = torch.tensor(owner, device=self.device)
        self.cache.batch_select_indices(rows)
        self.mask_bL = mask[rows]
        self.positions_B = mask.sum(-1)[rows]
        self.padding = [width - len(r.prompt_ids) for r in self.requests]
        logits: Tensor = out.logits[:, -1][rows]
        return logits

    def _step(self, tokens_b: Tensor, rows: Tensor, *, padded: bool) -> Tensor:
        self.mask_bL = torch.cat([self.mask_bL, self.mask_bL.new_ones(len(tokens_b), 1)], dim=1)
        out = self.model(
            input_ids=tokens_b[:, None],
            attention_mask=self.mask_bL if padded else None,
            position_ids=self.positions_B[rows, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.positions_B[rows] += 1
        logits: Tensor = out.logits[:, -1]
        return logits

    def _ends(self, row: int, token: int) -> bool:
        """Whether a completion ends with this token."""
        completion, sampling = self.completions[row], self.requests[row].sampling
        completion.append(token)
        ends = token in self.stop_ids or token in sampling.stop_token_ids
        self.stopped[row] = ends or self._has_stop_text(completion, sampling.stop)
        return self.stopped[row] or len(completion) >= sampling.max_tokens

    def _has_stop_text(self, completion: list[int], stop: Sequence[str]) -> bool:
        if not stop:
            return False
        longest = max(len(s.encode()) for s in stop)  # a token is a byte at least, and those before it were looked at
        text = self.tokenizer.decode(completion[-(longest + STOP_MARGIN) :])
        return any(s in text for s in stop)

    def _note_support(self, running: Sequence[int], logits_bV: Tensor) -> None:
        kept = (logits_bV > -torch.inf).nonzero().tolist()
        for row in running:
            if not self.requests[row].sampling.whole:
                self.supports[row].append([])
        for i, token in kept:
            if not self.requests[running[i]].sampling.whole:
                self.supports[running[i]][-1].append(token)

    def _result(self, i: int, logps: list[float]) -> Sampled:
        n = len(self.completions[i])
        return Sampled(
            completion_ids=self.completions[i],
            logps=logps[:n],
            version_spans=[VersionSpan(self.version, 0, n)],
            finish_reason="stop" if self.stopped[i] else "length",
            support=None if self.requests[i].sampling.whole else self.supports[i],
        )


@dataclass
class _Cut:
    """Top-k, then top-p, then min-p, of each completion."""

    top_p_B: Tensor
    """float64."""
    top_k_B: Tensor
    """int64; the size of the vocabulary or more: all."""
    min_p_B: Tensor
    """float64."""

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> _Cut | None:
        """None where no request leaves a token out."""
        if all(r.sampling.whole for r in requests):
            return None
        top_p, min_p = (
            torch.tensor(shares, dtype=torch.float64, device=device)
            for shares in ([r.sampling.top_p for r in requests], [r.sampling.min_p for r in requests])
        )
        return cls(top_p, torch.tensor([r.sampling.top_k or 1 << 62 for r in requests], device=device), min_p)

    def __call__(self, logits_bV: Tensor, temperature_b: Tensor, rows: Tensor) -> Tensor:
        """The logits with -inf for what may not be drawn. The likeliest token always may."""
        scaled = logits_bV.float() / torch.where(temperature_b == 0, 1.0, temperature_b)[:, None]
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        out = torch.arange(ordered.shape[-1], device=ordered.device) >= self.top_k_B[rows, None]
        p = ordered.masked_fill(out, -torch.inf).double().softmax(-1)
        before = p.cumsum(-1) - p
        top_p = self.top_p_B[rows, None]
        out |= (before >= top_p) & (top_p < 1)
        out |= p < self.min_p_B[rows, None] * p[:, :1]
        out[:, 0] = False
        return logits_bV.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)


def _uniforms(seed: int, n: int) -> Tensor:
    """The random stream of one completion: token t uses the t-th number."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _draw(
    logits_bV: Tensor, temperature_b: Tensor, uniform_b: Tensor, some_greedy: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw by inverting the cumulative distribution; log-probs are those of the tempered distribution.

    Temperature 0 takes the most likely token; its log-prob is that of the untempered distribution. `some_greedy` says
    whether there is one: asking the tensor would wait for the GPU.
    """
    greedy_b = temperature_b == 0
    logps_bV = torch.log_softmax(logits_bV.float() / torch.where(greedy_b, 1.0, temperature_b)[:, None], dim=-1)
    cumulative_bV = logps_bV.exp().double().cumsum(-1)
    target_b = uniform_b * cumulative_bV[:, -1]
    tokens_b = torch.searchsorted(cumulative_bV, target_b[:, None], right=True).squeeze(-1)
    tokens_b = tokens_b.clamp_(max=logits_bV.shape[-1] - 1)
    if some_greedy:
        tokens_b = torch.where(greedy_b, logits_bV.argmax(-1), tokens_b)
    return tokens_b, logps_bV.gather(-1, tokens_b[:, None]).squeeze(-1)
