"""The loop of RL post-training, on one page. Everything else is in the modules that the verbs call.

generate -> score -> assess -> advantage -> update -> sync weights
"""

from __future__ import annotations

import functools
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NoReturn, TypeVar

from postrl.algorithms.objective import PolicyObjective, ValueObjective, with_advantages
from postrl.algorithms.presets import PRESETS
from postrl.callbacks import Callbacks
from postrl.config import GRPOConfig, PPOConfig
from postrl.errors import PostrlError, UsageError, WeightsLost, error_from_wire, error_to_wire
from postrl.given import Given
from postrl.launch.model import with_adapter
from postrl.launch.owner import unnamed, writing_as_rank
from postrl.launch.script import ending_the_script, script_connections, stop_of, telling, with_shared_folder
from postrl.learning.batch import make_batch
from postrl.learning.hub import push_model
from postrl.learning.optimizing import UpdateReport
from postrl.learning.sharding import leave_ranks
from postrl.report import Reporter
from postrl.rewards.registry import resolve as resolve_reward
from postrl.rows.given import given_rows
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder, with_run_folder
from postrl.run.messages import decode, decode_groups, encode, encode_groups
from postrl.session import Session, open_session, resume
from postrl.types import Batch, Group, Metrics

F = TypeVar("F", bound=Callable[..., Any])


def timed(name: str) -> Callable[[F], F]:
    """Adds the seconds of a verb to `self.times[name]`."""

    def wrap(verb: F) -> F:
        @functools.wraps(verb)
        def call(self: GRPOTrainer, *args: Any) -> Any:
            start = time.monotonic()
            try:
                return verb(self, *args)
            finally:
                self.times[name] = self.times.get(name, 0.0) + time.monotonic() - start

        return call  # type: ignore[return-value]

    return wrap


class GRPOTrainer:
    """Trains a causal language model with group-relative policy optimization (arXiv:2402.03300).

    Args:
        model: hub id, folder or packaged name of a model or a LoRA adapter, or a loaded transformers (or peft) model;
            default: args.model.
        reward_funcs: one or several functions `f(prompts, completions, **columns) -> list[float | None]`, or names as
            for --reward; default: args.reward, else the data set's own.
        args: the settings.
        train_dataset, eval_dataset: a datasets.Dataset, a pandas (or polars) DataFrame or a list of dicts with a `prompt`
            column; default: args.dataset, args.eval_dataset.
        processing_class: the tokenizer; default: the model's.
        peft_config: a peft.LoraConfig; default: args.lora_rank and its companions.
        callbacks: transformers.TrainerCallback objects.
    """

    settings: type[GRPOConfig] = GRPOConfig
    """Class of the settings when none are given."""

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        callbacks: Sequence[Any] | None = None,
    ) -> None:
        args = args or self.settings()
        self._unnamed, self._made = unnamed(args), False
        if isinstance(model, PurePath):
            model = str(model)
        if not isinstance(model, str):
            _check_module(model, processing_class)
        args = replace(args, model=model if isinstance(model, str) else args.model or _name_of(model))
        loaded = model is not None and not isinstance(model, str)
        self.args = with_run_folder(with_adapter(args, loaded=loaded))
        if self.args.adapter and peft_config is not None:
            raise UsageError(
                f"the run goes on from the adapter {self.args.adapter}, and peft_config asks for a new one",
                hint="leave one of them out",
            )
        funcs = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        rewards = [resolve_reward(func) for func in funcs if func is not None]
        train, evaluate = (
            None if rows is None else given_rows(rows, split)
            for split, rows in (("train", train_dataset), ("eval", eval_dataset))
        )
        brought, preset = model if loaded else None, PRESETS.get(self.args.algorithm)
        self.given = Given(brought, peft_config, rewards, train, evaluate, processing_class, preset)
        self.callbacks = Callbacks(callbacks or [], self.args)
        self.connections: Connections | None = None
        self.session: Session | None = None
        self.times: dict[str, float] = {}
        self.rollout_metrics: Metrics = {}
        self.last_step = False
        self.failed: PostrlError | None = None
        self.sync_metrics: dict[str, float] = {}
        self._parts = ExitStack()

    # -- the page ------------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> dict[str, float | None]:
        """Run the loop. `resume_from_checkpoint`: True continues from the newest checkpoint in output_dir, a path from
        that one. Returns the metrics of the last step.

        Raises:
            UsageError: there is no run to continue in output_dir, or one goes on there.
            PostrlError: whatever keeps the run from going on, with a hint; checkpoints written before are intact.
            KeyboardInterrupt: a signal: Ctrl-C, or one of those that schedulers send (docs/failures.md). With everything
                saved for the first; a second SIGINT or SIGTERM stops at once. Handlers of yours stay in place.
        """
        with self.training(resume_from_checkpoint):
            self.sync_weights()  # the samplers start from our weights
            for step in self.progress():
                groups = self.generate(step)  # rollout + rewards: prompts -> scored groups, version-tagged
                batch = self.assess(groups)  # learning/    the forward passes that the algorithm needs: values, ...
                batch = self.advantage(batch)  # algorithms/  pure: advantages, masks
                stats = self.update(batch)  # learning/    loss, backward, optimizer step: the next weight version
                self.sync_weights()  # weights/     the samplers now hold it
                self.report(step, groups, batch, stats)  # metrics, rollouts, evaluation, checkpoint
            return self.reporter.last

    # -- the verbs -----------------------------------------------------------------------------------------------------

    @timed("generate")
    def generate(self, step: int) -> list[Group]:
        """The scored groups of this step, the same on every rank."""
        groups = self._ask(step)
        while isinstance(groups, WeightsLost):
            self.opened_session.sync.forget()
            self.sync_weights()
            groups = self.failed or self._ask(step)
        if isinstance(groups, PostrlError):
            self._end(step - 1, groups)
        return groups

    @timed("assess")
    def assess(self, groups: list[Group]) -> Batch:
        """The groups as tensors, with the log-probs and values that the algorithm needs before the update."""
        s = self.opened_session
        return s.learner.assess(make_batch(groups, s.version, s.ranks.device, s.rewards), s.algorithm.needs)

    def advantage(self, batch: Batch) -> Batch:
        """Rewards to advantages; what is not trained on leaves the mask here, before denominators are counted."""
        try:
            return with_advantages(batch, self.opened_session.algorithm)
        except ValueError as error:
            raise UsageError(f"no advantages for this batch: {error}", hint="see docs/algorithms.md") from error

    @timed("update")
    def update(self, batch: Batch) -> UpdateReport:
        """One update phase; afterwards the learner holds the next weight version. In the warm-up of the critic that is the
        policy of before: it is published again, so that versions and steps stay in step."""
        s = self.opened_session
        report = UpdateReport() if s.policy_waits else s.learner.update(batch, PolicyObjective(s.algorithm))
        if s.learner.critic is not None:
            report.critic = s.learner.critic.update(batch, ValueObjective(s.algorithm))
        s.version += 1
        if self.args.sync_ref_model and s.version % self.args.ref_model_sync_steps == 0:
            s.learner.refresh_reference(self.args.ref_model_mixup_alpha)
        return report

    @timed("sync")
    def sync_weights(self) -> None:
        """Publish the learner's weights; returns when every sampler serves them, or with `self.failed` set: the step that
        made them is still to be reported and saved."""
        s = self.opened_session

        def publish() -> None:
            with s.pushing():
                self.sync_metrics = s.sync.publish(s.version)

        self.failed = self._failure_of(publish)

    def report(self, step: int, groups: list[Group], batch: Batch, stats: UpdateReport) -> None:
        """Metrics, stored rollouts, evaluation and checkpoint of a finished step."""
        s = self.opened_session
        self.reporter.step_ended(step)
        last = self.reporter.should_stop() or step == s.total_steps
        evaluation: dict[str, float] = {}
        if self.failed is None and s.has_evaluation and (last or s.is_due("eval_steps", step)):
            self.failed = self._failure_of(lambda: evaluation.update(self.evaluate_now(step)))
        extra = {**self.sync_metrics, **evaluation}
        self.reporter.step(step, groups, batch, stats, self.times, extra, self.rollout_metrics)
        self.times = {}
        if self.failed is not None:
            self._end(step, self.failed)
        self.last_step = last = last or self.reporter.should_stop()
        if last or s.is_due("save_steps", step) or self.reporter.should_save():
            s.save(step)
            self.callbacks.on_save(step)

    def _ask(self, step: int) -> list[Group] | PostrlError:
        """What the source has for this step, or fails with; rank 0 asks, every rank hears it."""
        s, message = self.opened_session, b""
        if s.source is not None:
            try:
                groups, self.rollout_metrics = s.source.groups(step, s.version)
            except PostrlError as error:
                if s.ranks.size == 1:
                    return error
                message = encode("error", error_to_wire(error))
            else:
                if s.ranks.size == 1:
                    return groups
                message = encode_groups("groups", groups)
        kind, data, arrays = decode(s.ranks.broadcast(message))
        return error_from_wire(data) if kind == "error" else decode_groups(data, arrays)

    def _failure_of(self, act: Callable[[], None]) -> PostrlError | None:
        """What `act` fails with on rank 0, on every rank; the step is reported and saved before the run ends with it."""
        failed, s = None, self.opened_session
        try:
            act()
        except PostrlError as error:
            failed = error
        message = s.ranks.broadcast(encode("error", error_to_wire(failed)) if failed else b"")
        return failed or (error_from_wire(decode(message)[1]) if message else None)

    def _end(self, step: int, error: PostrlError) -> NoReturn:
        """A run that cannot go on leaves all that it has learned in its `step` finished steps (a collective)."""
        s = self.opened_session
        try:
            s.save_unless_saved(step)
        except PostrlError as lost:
            if s.ranks.is_main:
                s.folder.note(f"no checkpoint could be written: {lost.message}")
        raise error

    # -- around the loop -----------------------------------------------------------------------------------------------

    def progress(self) -> Iterator[int]:
        """The steps that are left. Ends early, after a step that was saved, when a stop is asked for."""
        s = self.opened_session
        if self.failed is not None:  # the first publication
            raise self.failed
        self.reporter.begin()
        if s.has_evaluation and s.first_step == 1:
            self.reporter.evaluation(0, self.evaluate_now(0))
        self.times, self.last_step = {}, False
        while s.first_step <= s.total_steps:
            yield s.first_step
            s.first_step += 1
            if self.last_step:
                break
        self.save_model()
        if self.args.push_to_hub and s.ranks.is_main and s.first_step > s.total_steps:
            s.folder.note(f"uploaded to {push_model(s.folder.model, self.args.push_to_hub)}")
        self.reporter.end()

    @contextmanager
    def training(self, resume_from: bool | str | Path | None) -> Iterator[None]:
        """A run that shows its steps (the launcher does for its own), and finishes the current one when told to stop."""
        by_script = self.connections is None
        self._take_own_folder(resume_from)
        with (
            telling(self.args) if by_script else nullcontext(),
            stop_of(self.args, by_script) as stop,
            self.opened(resume_from),
            ExitStack() as around,
        ):
            if by_script:
                around.enter_context(ending_the_script(stop, self.opened_session.ranks))
                around.enter_context(self.reporter.at_terminal())
            stop.training = True
            yield

    @contextmanager
    def opened(self, resume_from: bool | str | Path | None = None) -> Iterator[Session]:
        """The run with all its parts: servers and worker (a script's), session, reporter.

        They stay open after train(), for evaluate() and save_model(), until close(), an error or the end of the script.
        """
        try:
            if self.session is None:
                self._open(resume_from)
            elif resume_from:
                if resume_from is True:
                    self.session.folder.check_resumable()
                resume(self.session, None if resume_from is True else resume_from)
            yield self.opened_session
        except BaseException:
            parts, self._parts, self.session = self._parts, ExitStack(), None
            if self._made:
                with suppress(OSError):  # it holds something
                    Path(self.args.output_dir or "").rmdir()
            if not parts.__exit__(*sys.exc_info()):
                raise

    def _open(self, resume_from: bool | str | Path | None) -> None:
        self._take_own_folder(resume_from)
        checkpoint = Path(resume_from).expanduser() if isinstance(resume_from, str | Path) else None
        if resume_from:
            self.args = replace(self.args, resume=True)
        parts = self._parts = ExitStack()
        connections = self.connections or parts.enter_context(script_connections(self.args, self.given, checkpoint))
        self.session = parts.enter_context(open_session(self.args, connections, self.given))
        self.reporter = Reporter(self.session, self.callbacks)
        weakref.finalize(self, parts.close)  # at the end of the script, if nothing closed them before
        if self.args.resume:
            resume(self.session, checkpoint)

    def _take_own_folder(self, resume_from: bool | str | Path | None) -> None:
        """Make the folder of a run that is called after the time: others may start in the same second."""
        if self._unnamed and self.connections is None:
            self.args = self.callbacks.args = with_shared_folder(self.args, resume=resume_from is True)
            self._unnamed, self._made = False, True

    def close(self) -> None:
        """End the servers, the rollout worker and the reward processes. What was trained is in the run folder."""
        parts, self._parts, self.session = self._parts, ExitStack(), None
        parts.close()

    @property
    def opened_session(self) -> Session:
        if self.session is None:
            raise UsageError("the trainer is not running", hint="call train() first")
        return self.session

    def evaluate_now(self, step: int) -> dict[str, float]:
        """The evaluation set under the weights that the samplers hold now; stored like rollouts."""
        s = self.opened_session
        if s.source is None:
            return {}
        return self.reporter.evaluate(step, *s.source.evaluate(s.version))

    def evaluate(self) -> dict[str, float]:
        """Metrics of the evaluation set under the current weights: the initial ones before train().

        Raises:
            UsageError: there is no evaluation set.
        """
        with self.opened() as session:
            if not session.has_evaluation:
                raise UsageError("there is no evaluation set", hint="give eval_dataset")
            self.sync_weights()
            if self.failed is not None:
                raise self.failed
            return self.evaluate_now(session.first_step - 1)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """The model, or its adapter, as transformers and vLLM load it, in `output_dir` (default RUN/model); the critic,
        where there is one, in its folder `critic` (default RUN/critic)."""
        folder = RunFolder(self.args.output_dir or "")
        target = Path(output_dir) if output_dir else folder.model
        critic_target = Path(output_dir) / "critic" if output_dir else folder.critic
        if self.session is not None:
            learner = self.session.learner
            with self.session.folder.writing("the model"):
                learner.save_model(str(target), self.session.tokenizer)
                if learner.critic is not None:
                    learner.critic.save(critic_target, self.session.tokenizer)
        elif not folder.model.is_dir():
            raise UsageError("there is no trained model yet", hint="call train() first")
        elif target != folder.model:
            shutil.copytree(folder.model, target, dirs_exist_ok=True)
            if folder.critic.is_dir():
                shutil.copytree(folder.critic, critic_target, dirs_exist_ok=True)


class PPOTrainer(GRPOTrainer):
    """The same with a critic: proximal policy optimization (arXiv:1707.06347), or what args.algorithm names."""

    settings = PPOConfig


def _check_module(model: Any, tokenizer: Any) -> None:
    """A model object must be one, and its tokenizer must be known."""
    if model is not None and not hasattr(model, "save_pretrained"):
        raise UsageError(
            f"model is a {type(model).__name__}, expected a name or a transformers model",
            hint="GRPOTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', ...)",
        )
    if model is not None and tokenizer is None and not _name_of(model):
        raise UsageError(
            "model is a module that was not loaded from anywhere, so its tokenizer is not known",
            hint="give processing_class=tokenizer",
        )


def _name_of(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def learner_main(run_dir: str | Path) -> int:
    """`postrl learner RUN`: one trainer rank of a run that the launcher started."""
    folder = RunFolder(run_dir)
    trainer = GRPOTrainer(args=GRPOConfig.from_yaml(folder.config))
    trainer.connections = Connections.from_env()
    with folder.reporting_errors("trainer"), writing_as_rank(folder):
        trainer.train(resume_from_checkpoint=True)  # the launcher has checked that the folder is new, or may be resumed
        trainer.close()
    leave_ranks()
    return 0
