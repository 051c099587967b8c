"""What a training run is made of, built from its settings: ranks, learner, source of groups, weight sync, run folder.

`trainer.py` holds the loop; this module only puts the parts together and takes them apart again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.resolve import SETTINGS, resolve
from postrl.config import GRPOConfig
from postrl.config.algorithm_file import load_preset
from postrl.config.checks import context_exceeded, group_of_one
from postrl.config.engines import decided, engine_of
from postrl.config.refuse import refuse
from postrl.config.setting import in_steps
from postrl.errors import PostrlError, UsageError, error_from_wire, error_to_wire
from postrl.given import Given
from postrl.learning.checkpoint import checkpoints, load_checkpoint, load_pending, save_checkpoint, seed_everything
from postrl.learning.context import context_of
from postrl.learning.learner import Learner, build_learner
from postrl.learning.loading import end_turns, load_model, load_tokenizer, stop_token_ids, with_lora
from postrl.learning.sharding import Ranks, this_rank
from postrl.rollout.embedded import EmbeddedSampler
from postrl.rollout.sampler import Request, Sampler
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder, kept_settings
from postrl.run.messages import ProtocolError, decode, decode_groups, encode, encode_groups
from postrl.run.metrics import MetricsWriter
from postrl.run.waiting import speaking
from postrl.types import Group, Metrics, Sampled
from postrl.weights.sync import EmbeddedSync, ServerSync, WeightSync
from postrl.weights.transports import TRANSPORTS, connect
from postrl.worker.building import build_worker
from postrl.worker.source import LocalSource, RemoteSource, ReplaySource, Source, total_steps


@dataclass
class Session:
    """The open parts of one rank."""

    config: GRPOConfig
    folder: RunFolder
    ranks: Ranks
    learner: Learner
    algorithm: Algorithm
    tokenizer: Any
    source: Source | None
    """On rank 0 only."""
    sync: WeightSync
    total_steps: int
    has_evaluation: bool
    rewards: list[str] | None
    """Names of the run's reward functions, in their order; None: not known."""
    first_step: int = 1
    """The step to do next; later than 1 in a resumed run."""
    version: int = 0
    """Weight version: update phases completed."""
    saved_step: int = 0
    """The newest checkpoint of this run."""
    rollout_metrics: Metrics = field(default_factory=dict)
    """What the source said of the groups that it gave last."""

    def note(self, text: str) -> None:
        """A line for the person at the terminal, once for all ranks."""
        if self.ranks.is_main:
            self.folder.note(text)

    @property
    def policy_waits(self) -> bool:
        """Whether the critic alone is trained in this step: the first critic_warmup_steps."""
        return self.learner.critic is not None and self.first_step <= self.config.critic_warmup_steps

    def is_due(self, what: str, step: int) -> bool:
        """Whether `save_steps`, `eval_steps` or `logging_steps` (`what`) are full with this step."""
        every = in_steps(getattr(self.config, what), self.total_steps)
        return every > 0 and step % every == 0

    def save(self, step: int) -> None:
        """Write the checkpoint of a finished step (a collective)."""
        position, finished = self.source.state() if self.source else ({}, [])
        settings = kept_settings(self.config, self.folder)
        state = {"version": self.version, "source": position, "settings": settings}
        pending = encode_groups("pending", finished)
        keep = self.config.save_total_limit
        save_checkpoint(self.folder.checkpoints, step, self.learner, state, pending, keep=keep)
        self.saved_step = step

    def save_model(self, folder: Path, critic_folder: Path) -> None:
        """The model, and the critic where there is one, as they are now (a collective).

        Raises:
            PostrlError: the disk is full or not writable.
        """
        with self.folder.writing("the model"):
            self.learner.save_model(str(folder), self.tokenizer)
            if self.learner.critic is not None:
                self.learner.critic.save(critic_folder, self.tokenizer)

    def publish(self) -> dict[str, float]:
        """The learner's weights to every sampler (a collective). The source is told of it, and a long wait explained."""
        if self.source is None:
            return self.sync.publish(self.version)
        what = f"the servers to take and prove weight version {self.version}"
        with speaking(self.folder.note, what), self.source.pushing(self.version):
            return self.sync.publish(self.version)

    def groups(self, step: int) -> list[Group] | PostrlError:
        """What the source has for this step, or fails with; rank 0 asks, every rank hears it."""
        groups: list[Group] = []

        def ask() -> None:
            nonlocal groups
            if self.source is not None:
                groups, self.rollout_metrics = self.source.groups(step, self.version)

        if failed := self.failure_of(ask):
            return failed
        if self.ranks.size == 1:
            return groups
        _, data, arrays = decode(self.ranks.broadcast(encode_groups("groups", groups) if self.ranks.is_main else b""))
        return decode_groups(data, arrays)

    def failure_of(self, act: Callable[[], None]) -> PostrlError | None:
        """What `act` fails with on rank 0, on every rank."""
        failed = None
        try:
            act()
        except PostrlError as error:
            failed = error
        message = self.ranks.broadcast(encode("error", error_to_wire(failed)) if failed else b"")
        return failed or (error_from_wire(decode(message)[1]) if message else None)

    def end(self, step: int, error: PostrlError) -> NoReturn:
        """A run that cannot go on leaves all that it has learned in its `step` finished steps (a collective)."""
        try:
            if step > self.saved_step:
                self.save(step)
                self.note(f"saved checkpoint {step} before the run ends")
        except PostrlError as lost:
            self.note(f"no checkpoint could be written: {lost.message}")
        raise error

    def resume(self, checkpoint: Path | None = None) -> None:
        """Load a checkpoint (default: the newest) and rewind the run's files to it.

        Without any, the run starts from its first step, and what it left in its folder is rewound to nothing.

        Raises:
            UsageError: `checkpoint` is not one.
            PostrlError: it is damaged or of another model.
        """
        path = checkpoint or next(reversed(checkpoints(self.folder.checkpoints)), None)
        if path is None:
            self._rewind(-1)
            return
        if not (path / "state.json").exists():
            raise UsageError(f"{path} is not a checkpoint", hint="give a folder such as RUN/checkpoints/step_000010")
        state = load_checkpoint(path, self.learner)
        self.version, self.saved_step = int(state["version"]), int(state["step"])
        self.first_step = self.saved_step + 1
        if self.source is not None:
            self.source.load_state(state["source"], _pending(path))
        self._rewind(self.saved_step)
        if self.first_step > self.total_steps:
            self.note(
                f"{path.name} is the end of the run: nothing is left of its {self.total_steps} steps (--max-steps asks for more)"
            )
        else:
            self.note(f"continuing from {path.name}: step {self.first_step} of {self.total_steps}")

    def _rewind(self, step: int) -> None:
        if self.ranks.is_main:
            MetricsWriter(self.folder.metrics).cut_after(step)
            self.folder.rewind(step)


@contextlib.contextmanager
def open_session(config: GRPOConfig, connections: Connections, given: Given) -> Iterator[Session]:
    """Everything a rank needs to run the loop; closed again at the end, however it comes.

    Raises:
        PostrlError: a part cannot be built: no such model, no data, a reward that cannot be loaded, ...
    """
    with contextlib.ExitStack() as stack:
        ranks = this_rank()
        seed_everything(config.seed)
        folder = RunFolder(config.output_dir or "")
        algorithm = resolve_algorithm(config)
        path = connections.model_path or config.model
        tokenizer = given.tokenizer or load_tokenizer(config, path)
        model = given.model if given.model is not None else load_model(config, path, peft_config=given.peft_config)
        if engine_of(config).samples:
            refuse(context_exceeded(config, context_of(model.config.to_dict())))
        stop_ids = stop_token_ids(model.config, getattr(model, "generation_config", None), tokenizer)
        model = model if given.adapted else with_lora(model, config, given.peft_config)
        embedded = not connections.server_urls and engine_of(config).samples
        if embedded and ranks.size > 1:
            raise UsageError(
                f"engine = {config.engine} generates inside one trainer process, and {ranks.size} are running",
                hint="use --engine vllm, or --num-processes 1",
            )
        engine, tokens = decided(config, installed=False), len(model.get_input_embeddings().weight)
        sampler = _EmbeddedParts(engine, tokenizer, stop_ids, tokens) if embedded else None
        source = _source(config, connections, tokenizer, folder, given, sampler) if ranks.is_main else None
        if source is not None:
            stack.callback(source.close)
            end_turns(model, stop_ids, source.turn_tokens)
        known = source and [total_steps(config, source), source.has_evaluation, source.rewards]
        steps, has_evaluation, rewards = json.loads(ranks.broadcast(json.dumps(known).encode()))  # rank 0 has the data
        learner = build_learner(config, ranks, algorithm.needs, model, tokenizer, given.peft_config, steps)
        sync = _sync(config, connections, folder, learner, tokenizer, sampler)
        stack.callback(sync.close)
        session = Session(
            config, folder, ranks, learner, algorithm, tokenizer, source, sync, steps, has_evaluation, rewards
        )
        if learner.critic is not None and steps <= config.critic_warmup_steps:
            session.note(
                f"all {steps} steps of this run train the critic alone (critic_warmup_steps = {config.critic_warmup_steps}): the "
                "policy stays as it is"
            )
        yield session


def resolve_algorithm(config: GRPOConfig) -> Algorithm:
    """The preset, or that of the user's file, with the settings of the run.

    Raises:
        UsageError: there is none, or an impossible combination.
    """
    settings = {name: getattr(config, name) for name in SETTINGS}
    settings["reward_weights"] = tuple(config.reward_weights)
    try:
        algorithm = resolve(load_preset(config.algorithm), **settings)
    except ValueError as error:
        raise UsageError(str(error), hint="see docs/algorithms.md") from error
    refuse(group_of_one(config, algorithm.preset))  # an algorithm in a file is not known before
    return algorithm


SAMPLERS = {"transformers": EmbeddedSampler}
"""What samples inside the trainer, by engine."""


class _EmbeddedParts(Sampler):
    """The embedded sampler comes before the learner (the worker needs it), its model and version after."""

    embedded = True

    def __init__(self, engine: str, tokenizer: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self.engine, self.tokenizer, self.stop_ids, self.vocabulary = engine, tokenizer, stop_ids, vocabulary
        self.sampler: Sampler | None = None

    async def sample(self, request: Request) -> Sampled:
        assert self.sampler is not None, "the learner is built before the first step"
        return await self.sampler.sample(request)

    def attach(self, model: Any, sync: EmbeddedSync) -> None:
        self.sampler = SAMPLERS[self.engine](
            model, self.tokenizer, stop_token_ids=self.stop_ids, version=lambda: sync.version
        )


def _source(
    config: GRPOConfig,
    connections: Connections,
    tokenizer: Any,
    folder: RunFolder,
    given: Given,
    sampler: _EmbeddedParts | None,
) -> Source:
    if config.replay:
        return ReplaySource(config.replay, config)
    if connections.worker:
        return RemoteSource(connections.worker, config)
    assert sampler is not None
    stops, tokens = sampler.stop_ids, sampler.vocabulary
    worker, train = build_worker(
        config, tokenizer, sampler, folder, given=given, stop_token_ids=stops, vocabulary=tokens
    )
    return LocalSource(worker, len(train.prompts))


def _sync(
    config: GRPOConfig,
    connections: Connections,
    folder: RunFolder,
    learner: Learner,
    tokenizer: Any,
    sampler: _EmbeddedParts | None,
) -> WeightSync:
    if not engine_of(config).samples:
        return WeightSync()
    if sampler is not None:
        own = learner.sampling_copy() if learner.sharded else None
        sync = EmbeddedSync(learner, own)
        sampler.attach(own if own is not None else learner.policy.model, sync)
        return sync
    adapters = TRANSPORTS[connections.transport].adapters
    if not learner.ranks.is_main:
        return ServerSync(learner, None, [], tokenizer, adapters=adapters)
    transport, servers = connect(config, connections, folder, learner.policy.peft_config)
    return ServerSync(learner, transport, servers, tokenizer, adapters=adapters)


def _pending(path: Path) -> list[Group]:
    """The finished groups of a checkpoint that were not trained on yet."""
    try:
        _, data, arrays = decode(load_pending(path))
        return decode_groups(data, arrays)
    except ProtocolError as error:
        raise PostrlError(
            f"checkpoint {path} cannot be resumed: the finished groups in it are damaged, or of another version of postrl "
            f"({error.message})",
            hint="resume it with the version that wrote it, or delete it to use the one before",
        ) from error
