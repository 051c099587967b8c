"""What a training run is made of, built from its settings: ranks, learner, source of groups, weight sync, run folder.

`trainer.py` holds the loop; this module only puts the parts together and takes them apart again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postrl.algorithms.algorithm import Algorithm
from postrl.algorithms.resolve import SETTINGS, resolve
from postrl.config import GRPOConfig
from postrl.config.algorithm_file import load_preset
from postrl.config.checks import context_exceeded, group_of_one, refuse
from postrl.config.engines import decided, engine_of
from postrl.config.settings import in_steps
from postrl.errors import PostrlError, UsageError
from postrl.given import Given
from postrl.learning.checkpoint import checkpoints, load_checkpoint, load_pending, save_checkpoint, seed_everything
from postrl.learning.context import context_of
from postrl.learning.critic import Critic, critic_body
from postrl.learning.learner import Learner
from postrl.learning.loading import (
    compute_dtype,
    end_turns,
    load_model,
    load_tokenizer,
    starts_at_zero,
    stop_token_ids,
    with_lora,
)
from postrl.learning.sharding import Ranks, this_rank
from postrl.rollout.embedded import EmbeddedSampler
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder, kept_settings
from postrl.run.messages import ProtocolError, decode, decode_groups, encode_groups
from postrl.run.metrics import MetricsWriter
from postrl.run.trackers import Trackers
from postrl.run.waiting import speaking
from postrl.types import Group
from postrl.weights.sync import EmbeddedSync, ServerSync, WeightSync
from postrl.weights.transports import TRANSPORTS, connect
from postrl.worker.source import LocalSource, RemoteSource, ReplaySource, Source, total_steps
from postrl.worker.worker import RolloutWorker, build_worker


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
    metrics: MetricsWriter
    trackers: Trackers
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

    def save_unless_saved(self, step: int) -> None:
        """Write the checkpoint of the last finished step where there is none yet (a collective)."""
        if step > self.saved_step:
            self.save(step)
            if self.ranks.is_main:
                self.folder.note(f"saved checkpoint {step} before the run ends")

    @contextlib.contextmanager
    def pushing(self) -> Iterator[None]:
        """Around the publication of the weights: the source of groups is told of it, and a long wait is explained."""
        if self.source is None:
            yield
            return
        what = f"the servers to take and prove weight version {self.version}"
        with speaking(self.folder.note, what), self.source.pushing(self.version):
            yield


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
        model = with_lora(model, config, given.peft_config)
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
        steps, has_evaluation, rewards = _agree(config, ranks, source)
        learner = _learner(config, ranks, algorithm, model, tokenizer, given.peft_config, steps)
        if learner.critic is not None and steps <= config.critic_warmup_steps and ranks.is_main:
            folder.note(
                f"all {steps} steps of this run train the critic alone (critic_warmup_steps = {config.critic_warmup_steps}): the "
                "policy stays as it is"
            )
        sync = _sync(config, connections, folder, learner, tokenizer, sampler)
        stack.callback(sync.close)
        trackers = Trackers(
            config.report_to if ranks.is_main else [],
            run_name=config.run_name or "",
            project=config.project,
            folder=folder.path,
            note=folder.note,
            settings=config.to_dict(),
        )
        stack.callback(trackers.close)
        yield Session(
            config, folder, ranks, learner, algorithm, tokenizer, source, sync, MetricsWriter(folder.metrics), trackers, steps, has_evaluation,
            rewards,
        )  # fmt: skip


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


class _EmbeddedParts:
    """The embedded sampler comes before the learner (the worker needs it), its model and version after."""

    def __init__(self, engine: str, tokenizer: Any, stop_ids: Sequence[int], vocabulary: int) -> None:
        self.engine, self.tokenizer, self.stop_ids, self.vocabulary = engine, tokenizer, stop_ids, vocabulary
        self.sampler: EmbeddedSampler | None = None

    def sample(self, requests: Any) -> Any:
        assert self.sampler is not None, "the learner is built before the first step"
        return self.sampler.sample(requests)

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
        RolloutWorker, config, tokenizer, sampler, folder, given=given, stop_token_ids=stops, vocabulary=tokens
    )
    return LocalSource(worker, len(train.prompts))


def _agree(config: GRPOConfig, ranks: Ranks, source: Source | None) -> tuple[int, bool, list[str] | None]:
    """Rank 0 knows the data; the others learn from it: steps, whether there is an evaluation set, names of the rewards."""
    mine = b""
    if source is not None:
        mine = json.dumps([total_steps(config, source), source.has_evaluation, source.rewards]).encode()
    steps, has_evaluation, rewards = json.loads(ranks.broadcast(mine))
    return steps, has_evaluation, rewards


def _learner(
    config: GRPOConfig, ranks: Ranks, algorithm: Algorithm, model: Any, tokenizer: Any, peft_config: Any, steps: int
) -> Learner:
    """The learner with what the algorithm needs beside the policy: copies of the initial model, made before anything
    changes it."""
    dtype, phase = compute_dtype(config), config.num_iterations * config.minibatches
    adapted = hasattr(model, "disable_adapter")
    reference, critic, waits = _reference(model, algorithm, config.sync_ref_model), None, 0
    if "values" in algorithm.needs:
        waits = min(steps, config.critic_warmup_steps)
        body = critic_body(config, model, tokenizer, peft_config)
        critic = Critic(body, config=config, ranks=ranks, dtype=dtype, total_updates=steps * phase)
    return Learner(
        model,
        config=config,
        ranks=ranks,
        dtype=dtype,
        total_updates=(steps - waits) * phase,
        reference=reference,
        keeps_start="ref" in algorithm.needs and adapted and not starts_at_zero(model),
        critic=critic,
    )


def _reference(model: Any, algorithm: Algorithm, follows: bool) -> Any:
    """A second copy of the initial model, unless the KL is off or there is an adapter: that is switched off, or put back to
    its start, instead.

    Args:
        follows: it is to follow the policy (sync_ref_model).

    Raises:
        UsageError: there is an adapter, and the reference could not follow.
    """
    if "ref" not in algorithm.needs:
        return None
    if hasattr(model, "disable_adapter"):
        if follows:
            raise UsageError(
                "sync_ref_model is on, and the reference of a model with an adapter is that of the start, which does not move",
                hint="set sync_ref_model=False, or train all weights (without peft_config)",
            )
        return None
    import copy

    return copy.deepcopy(model)  # before a checkpoint is loaded into it


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
        own = _sampling_copy(learner, compute_dtype(config)) if learner.sharded else None
        sync = EmbeddedSync(learner, own)
        sampler.attach(own if own is not None else learner.policy.model, sync)
        return sync
    adapters = TRANSPORTS[connections.transport].adapters
    if not learner.ranks.is_main:
        return ServerSync(learner, None, [], tokenizer, adapters=adapters)
    transport, servers = connect(config, connections, folder, learner.policy.peft_config)
    return ServerSync(learner, transport, servers, tokenizer, adapters=adapters)


def _sampling_copy(learner: Learner, dtype: str) -> Any:
    """A model in the compute dtype to sample from: the learner's own weights are float32 and sharded."""
    import torch
    from transformers import AutoModelForCausalLM

    config = learner.policy.causal_lm.config
    with learner.ranks.device:  # drawing weights that are thrown away takes a CPU longer than the copy after it
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
    return model.to(learner.ranks.device).requires_grad_(False).eval()


def resume(session: Session, checkpoint: str | Path | None = None) -> None:
    """Load a checkpoint (default: the newest) and rewind the run's files to it.

    Without any, the run starts from its first step, and what it left in its folder is rewound to nothing.

    Raises:
        UsageError: `checkpoint` is none.
        PostrlError: it is damaged or of another model.
    """
    folder = session.folder
    found = checkpoints(folder.checkpoints)
    path = Path(checkpoint) if checkpoint else found[-1] if found else None
    if path is None:
        if session.ranks.is_main:
            session.metrics.cut_after(-1)
            folder.rewind(-1)
        return
    if not (path / "state.json").exists():
        raise UsageError(f"{path} is not a checkpoint", hint="give a folder such as RUN/checkpoints/step_000010")
    state = load_checkpoint(path, session.learner)
    session.version = int(state["version"])
    session.saved_step = int(state["step"])
    session.first_step = session.saved_step + 1
    if session.source is not None:
        session.source.load_state(state["source"], _pending(path))
        session.metrics.cut_after(int(state["step"]))
        folder.rewind(int(state["step"]))
        folder.note(_continuing(session, path))


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


def _continuing(session: Session, path: Path) -> str:
    step, total = session.first_step, session.total_steps
    if step > total:
        return f"{path.name} is the end of the run: nothing is left of its {total} steps (--max-steps asks for more)"
    return f"continuing from {path.name}: step {step} of {total}"
