"""The rollout worker: data order, requests, rewards. The page of `trainer.py`, for the other side of the loop.

    prompts -> requests -> sampler -> completions -> groups, scored as soon as they are whole -> the learner

It runs in a process of its own next to vLLM servers (`worker_main`), so that parsing answers and waiting for rewards
never holds the interpreter of a trainer rank; with the embedded engine it runs inside the trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from postrl.config import GRPOConfig
from postrl.connections import Connections
from postrl.data import NAMED_UNUSABLE, PromptSet, PromptStream, load_prompts
from postrl.errors import ServerError, UsageError, error_to_wire
from postrl.learning.loading import load_tokenizer, stop_tokens_of
from postrl.lost_servers import run_servers
from postrl.messages import PROTOCOL, ProtocolError, encode, encode_groups, read_message, write_message
from postrl.rewards.registry import RewardSpec, resolve, with_options
from postrl.rewards.rows import scorable_rows
from postrl.rewards.runner import RewardRunner
from postrl.rollout.sampler import Request, Sampled, Sampler, Sampling, derive_seed
from postrl.rollout.vllm import VLLMSampler
from postrl.run_folder import RunFolder
from postrl.types import Group, Prompt, Rollout

logger = logging.getLogger(__name__)
Metrics = dict[str, Any]
MAX_MISSING_LOGPS = 0.01
"""Share of tokens without a sampler log-prob above which a batch is refused."""


class RolloutWorker:
    """Makes scored groups.

    Args:
        train: prompts to train on; evaluate: prompts of the evaluation set, or None.
        sampler: where completions come from.
        rewards: what scores them.
        tokenizer: decodes completions.
    """

    def __init__(
        self,
        config: GRPOConfig,
        *,
        train: PromptSet,
        evaluate: PromptSet | None,
        sampler: Sampler,
        rewards: RewardRunner,
        tokenizer: Any,
    ) -> None:
        self.config, self.sampler, self.rewards, self.tokenizer = config, sampler, rewards, tokenizer
        self.stream = PromptStream(train.prompts, seed=config.seed, shuffle=config.shuffle, weights=train.weights)
        self.evaluation = evaluate

    async def groups(self, version: int) -> tuple[list[Group], Metrics]:
        """The scored groups of the next step, sampled from weights of `version`.

        Raises:
            RewardError: rewards failed more often than the budget allows.
            ServerError: completions could not be had, or came without log-probs.
        """
        sampling = Sampling(self.config.temperature, self.config.max_completion_length, tuple(self.config.stop))
        prompts = self.stream.next(self.config.prompts_per_step)
        groups, times = await self._sample(prompts, self.config.num_generations, sampling, version)
        self.rewards.check_budget(groups, self.config.reward_error_budget)
        _check_logps(groups)
        dropped = drop_unscored(groups)
        metrics = {**self.rewards.metrics(groups), **times, "epoch": self.stream.epoch, **self._counters()}
        return groups, {**metrics, "group/unscored": float(dropped)}

    async def evaluate(self, version: int) -> tuple[list[Group], Metrics]:
        """One greedy completion for each prompt of the evaluation set, scored.

        Raises:
            RewardError, ServerError: as for `groups`.
        """
        prompts = list(enumerate(self.evaluation.prompts)) if self.evaluation else []
        sampling = Sampling(0.0, self.config.max_completion_length, tuple(self.config.stop))
        groups, _ = await self._sample(prompts, 1, sampling, version)
        self.rewards.forget_logged()  # the next step reports its own
        self.rewards.check_budget(groups, self.config.reward_error_budget)
        scores = [r.reward for g in groups for r in g.rollouts if r.reward is not None]
        lengths = [float(len(r.completion_ids)) for g in groups for r in g.rollouts]
        cut = [float(r.finish_reason == "length") for g in groups for r in g.rollouts]
        name = self.evaluation.name if self.evaluation else ""
        return groups, {
            f"eval/{name}/reward": (sum(scores), float(len(scores))),
            f"eval/{name}/completion_length": (sum(lengths), float(len(lengths))),
            f"eval/{name}/truncated_frac": (sum(cut), float(len(cut))),
        }

    async def _sample(
        self, prompts: Sequence[tuple[int, Prompt]], per_prompt: int, sampling: Sampling, version: int
    ) -> tuple[list[Group], Metrics]:
        """Sample all, score each group as soon as it is whole, and all of them by what compares them."""
        started = time.monotonic()
        groups = [Group(p.prompt_id, gid, p.text, p.messages, p.columns, [], p.rewards) for gid, p in prompts]
        requests = [
            Request(p.token_ids, derive_seed(self.config.seed, gid, p.prompt_id, i), sampling, version)
            for gid, p in prompts
            for i in range(per_prompt)
        ]
        scoring: list[asyncio.Task[None]] = []
        try:
            async with contextlib.aclosing(self.sampler.sample(requests)) as completions:
                async for index, sampled in completions:
                    group = groups[index // per_prompt]
                    group.rollouts.append(self._rollout(prompts[index // per_prompt][1], index % per_prompt, sampled))
                    if len(group.rollouts) == per_prompt:
                        group.rollouts.sort(key=lambda rollout: rollout.sample_index)
                        scoring.append(asyncio.create_task(self.rewards.score(group)))
            generated = time.monotonic()
            await asyncio.gather(*scoring)
            await self.rewards.score_step(groups)
        finally:
            for task in scoring:
                task.cancel()
        return groups, {"time/generate": generated - started, "time/score": time.monotonic() - generated}

    def _rollout(self, prompt: Prompt, sample_index: int, sampled: Sampled) -> Rollout:
        return Rollout(
            prompt_id=prompt.prompt_id,
            sample_index=sample_index,
            prompt_ids=list(prompt.token_ids),
            completion_ids=sampled.completion_ids,
            logps=sampled.logps,
            version_spans=sampled.version_spans,
            finish_reason=sampled.finish_reason,
            completion=self.tokenizer.decode(sampled.completion_ids, skip_special_tokens=True),
        )

    def _counters(self) -> Metrics:
        reissued = getattr(self.sampler, "reissued", None)
        return {} if reissued is None else {"rollout/reissued": float(reissued)}

    def state(self) -> dict[str, Any]:
        """Where the data stands, as JSON values."""
        return self.stream.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.stream.load_state(state)

    def close(self) -> None:
        self.rewards.close()


def drop_unscored(groups: Sequence[Group]) -> int:
    """Leave groups out of which no completion could be scored: they are stored, not trained on. Returns how many."""
    unscored = [group for group in groups if all(rollout.reward is None for rollout in group.rollouts)]
    for group in unscored:
        for rollout in group.rollouts:
            rollout.dropped = "unscored"
    return len(unscored)


def _check_logps(groups: Sequence[Group]) -> None:
    logps = [x for group in groups for rollout in group.rollouts for x in rollout.logps]
    missing = sum(x != x for x in logps)
    if missing > MAX_MISSING_LOGPS * len(logps):
        raise ServerError(
            f"{missing} of {len(logps)} tokens came without a log-prob from the sampler",
            hint="start servers of your own with `postrl serve`, or with --logprobs-mode processed_logprobs",
        )


def build_worker(
    config: GRPOConfig, tokenizer: Any, sampler: Sampler, folder: RunFolder, *, job: Job | None = None
) -> tuple[RolloutWorker, PromptSet]:
    """Load the data, resolve the rewards and put the worker together; what was left out of the data is noted.

    Raises:
        DataError, UsageError: the data set or a reward cannot be used.
    """
    job = job or Job()
    train = load_prompts(config, tokenizer, split="train", raw=job.train)
    evaluate = None
    if job.evaluate is not None or config.eval_dataset:
        evaluate = load_prompts(config, tokenizer, split="eval", raw=job.evaluate)
    sets = [train, *([] if evaluate is None else [evaluate])]
    specs = _rewards(config, job, sets)
    for prompts in sets:
        if job.rewards:  # a script's functions score every row, also those of a data set with a reward of its own
            for prompt in prompts.prompts:
                prompt.rewards = ()
        prompts.prompts, ids = scorable_rows(prompts.prompts, specs)
        prompts.num_unusable += len(ids)
        prompts.unusable = [*prompts.unusable, *ids][:NAMED_UNUSABLE]
        folder.note(prompts.describe())
    if any(spec.kind == "builtin" and spec.payload == "code" for spec in specs):
        from postrl.rewards.code.sandbox import choose

        folder.note(f"model-written code runs in the sandbox {choose(config.sandbox).about}")
    rewards = RewardRunner.for_run(specs, config, log_path=folder.logs / "rewards.log")
    return RolloutWorker(
        config, train=train, evaluate=evaluate, sampler=sampler, rewards=rewards, tokenizer=tokenizer
    ), train


def _rewards(config: GRPOConfig, job: Job, sets: Sequence[PromptSet]) -> list[RewardSpec]:
    """The run's reward functions with their options: the script's, those of --reward, else the data sets' own."""
    own = dict.fromkeys(name for prompts in sets for name in prompts.default_reward)
    specs = job.rewards or [resolve(name) for name in config.reward or own]
    if not specs:
        raise UsageError(
            f"no reward is given, and {sets[0].name} has none of its own",
            hint="--reward math, --reward code or --reward file.py:function",
        )
    return with_options(specs, config.reward_arg)


@dataclass
class Job:
    """What a script hands its worker besides the config; pickled, from parent to child on one host only."""

    rewards: list[RewardSpec] = field(default_factory=list)
    train: Any = None
    """Rows to train on: a datasets.Dataset or a list of dicts."""
    evaluate: Any = None
    tokenizer: Any = None

    def dumps(self) -> bytes:
        import cloudpickle

        return bytes(cloudpickle.dumps(self))


# -- the process of its own --------------------------------------------------------------------------------------------


def worker_main(run_dir: str) -> int:
    """`postrl worker RUN`: listen at the address in the environment and serve one learner until it closes."""
    from postrl.launch.process import read_stdin

    folder = RunFolder(run_dir)
    config = GRPOConfig.from_yaml(folder.config)
    connections = Connections.from_env()
    content = read_stdin()
    job: Job = pickle.loads(content) if content else Job()  # from the parent's pipe, never from the network
    path = connections.model_path or config.model
    tokenizer = job.tokenizer or load_tokenizer(config, path)
    sampler = VLLMSampler(
        run_servers(connections, folder.weights),
        stop_token_ids=stop_tokens_of(config, path, tokenizer),
        request_timeout=config.request_timeout,
        patience=config.request_timeout + config.server_start_timeout,
    )
    worker, train = build_worker(config, tokenizer, sampler, folder, job=job)
    try:
        asyncio.run(_serve(worker, len(train.prompts), connections.worker or ""))
    finally:
        worker.close()
    return 0


async def _serve(worker: RolloutWorker, num_prompts: int, address: str) -> None:
    await worker.rewards.start()
    finished = asyncio.Event()

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await read_message(reader)) is not None:
                await write_message(writer, await _answer(worker, num_prompts, *message))
        finally:
            writer.close()
            finished.set()

    if address.startswith("unix:"):
        server = await asyncio.start_unix_server(session, address.removeprefix("unix:"))
    else:
        host, _, port = address.removeprefix("tcp:").rpartition(":")
        server = await asyncio.start_server(session, host, int(port))
    async with server:
        await finished.wait()


async def _answer(worker: RolloutWorker, num_prompts: int, kind: str, data: dict[str, Any], arrays: Any) -> bytes:
    """One request of the learner. What goes wrong travels back as an error, so that the learner can save and stop."""
    try:
        if kind == "groups":
            groups, metrics = await worker.groups(int(data["version"]))
            return encode_groups("groups", groups, {"metrics": metrics})
        if kind == "evaluate":
            groups, metrics = await worker.evaluate(int(data["version"]))
            return encode_groups("groups", groups, {"metrics": metrics})
        if kind == "state":
            return encode("state", {"state": worker.state()})
        if kind == "load_state":
            worker.load_state(data["state"])
            return encode("done")
        if kind == "hello":
            return encode(
                "hello",
                {"protocol": PROTOCOL, "num_prompts": num_prompts, "has_evaluation": worker.evaluation is not None},
            )
        raise ProtocolError(f"the learner asked for {kind!r}, which this rollout worker does not know")
    except Exception as error:
        logger.exception("the request %r failed", kind)
        return encode("error", error_to_wire(error))
