"""The loop of RL post-training, on one page. Everything else is in the modules that the verbs call.

generate -> score -> assess -> advantage -> update -> sync weights
"""

from __future__ import annotations

import shutil
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from postrl.algorithms.objective import PolicyObjective, ValueObjective, with_advantages
from postrl.algorithms.presets import PRESETS
from postrl.config import GRPOConfig, PPOConfig, RLOOConfig
from postrl.config.python_hints import hints_in_python
from postrl.errors import PostrlError, UsageError, WeightsLost
from postrl.given import Given
from postrl.launch.owner import unnamed
from postrl.launch.script import ending_the_script, script_connections, settings_of, shared_folder, stop_of, telling
from postrl.learning.batch import make_batch
from postrl.learning.optimizing import UpdateReport
from postrl.report import Reporter, timed
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder
from postrl.scripts.callbacks import Callbacks
from postrl.scripts.hooks import refuse_arguments
from postrl.scripts.names import TrainerNames
from postrl.scripts.results import TrainResult
from postrl.session import Session, open_session
from postrl.types import Batch, Group


class GRPOTrainer(TrainerNames):
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
        reward_processing_classes: tokenizers of reward models, one for each reward; default: each model's own.

    Raises:
        UsageError: an argument of TRL's that has no counterpart here, or one that cannot be.
    """

    settings: type[GRPOConfig] = GRPOConfig
    """Class of the settings when none are given."""
    reporter: Reporter

    @hints_in_python()
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
        reward_processing_classes: Any = None,
        **further: Any,
    ) -> None:
        refuse_arguments(further, GRPOTrainer)
        self.session: Session | None = None
        self.reward_funcs = list(reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs])
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        args = args or self.settings()
        self._unnamed = unnamed(args)
        self.given = Given.by_script(
            model, reward_funcs, train_dataset, eval_dataset, processing_class, peft_config, reward_processing_classes
        )
        self.args = settings_of(args, model, self.given)
        self.given.preset = PRESETS.get(self.args.algorithm)
        self.callbacks = Callbacks(
            callbacks or [], self.args, model=self.given.model, processing_class=processing_class
        )
        self.connections: Connections | None = None
        self.times: dict[str, float] = {}
        self.last_step = False
        self.failed: PostrlError | None = None
        self.sync_metrics: dict[str, float] = {}
        self._parts = ExitStack()
        self.callbacks.on_init_end()

    # -- the page ------------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> TrainResult:
        """Run the loop. `resume_from_checkpoint`: True continues from the newest checkpoint in output_dir, a path from
        that one. Returns the metrics of the last step, with those of the training as `.metrics`.

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
            return self.reporter.result()

    # -- the verbs -----------------------------------------------------------------------------------------------------

    @timed("generate")
    def generate(self, step: int) -> list[Group]:
        """The scored groups of this step, the same on every rank."""
        s = self.opened_session
        groups = s.groups(step)
        while isinstance(groups, WeightsLost):
            s.sync.forget()
            self.sync_weights()
            groups = self.failed or s.groups(step)
        if isinstance(groups, PostrlError):
            s.end(step - 1, groups)
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
            self.sync_metrics = s.publish()

        self.failed = s.failure_of(publish)

    def report(self, step: int, groups: list[Group], batch: Batch, stats: UpdateReport) -> None:
        """Metrics, stored rollouts, evaluation and checkpoint of a finished step."""
        s = self.opened_session
        self.reporter.step_ended(step)
        last = self.reporter.should_stop() or step == s.total_steps
        evaluation: dict[str, float] = {}
        if (
            self.failed is None
            and s.has_evaluation
            and (last or s.is_due("eval_steps", step) or self.reporter.should_evaluate())
        ):
            self.failed = s.failure_of(lambda: evaluation.update(self.reporter.evaluate(step)))
        self.reporter.step(step, groups, batch, stats, self.times, {**self.sync_metrics, **evaluation})
        self.times = {}
        self.failed = self.failed or s.learner.cut_off(step)
        if self.failed is not None:
            s.end(step, self.failed)
        self.last_step = last = last or self.reporter.should_stop()
        if last or s.is_due("save_steps", step) or self.reporter.should_save():
            s.save(step)
            self.reporter.saved()
            if self.args.hub_strategy == "every_save" and not last:
                self.push_while_training()

    # -- around the loop -----------------------------------------------------------------------------------------------

    def progress(self) -> Iterator[int]:
        """The steps that are left. Ends early, after a step that was saved, when a stop is asked for."""
        s = self.opened_session
        if self.failed is not None:  # the first publication
            raise self.failed
        self.reporter.begin()
        self.times, self.last_step = {}, False
        while s.first_step <= s.total_steps:
            self.reporter.step_begins()
            yield s.first_step
            s.first_step += 1
            if self.last_step:
                break
        self.save_model()
        if self.args.push_to_hub and s.ranks.is_main and s.first_step > s.total_steps:
            s.note(f"uploaded to {self.push_to_hub()}")
        self.reporter.end()

    @contextmanager
    def training(self, resume_from: bool | str | Path | None) -> Iterator[None]:
        """A run that shows its steps (the launcher does for its own), and finishes the current one when told to stop."""
        by_script = self.connections is None
        self._take_own_folder(resume_from is True)
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
        checkpoint = Path(resume_from).expanduser() if isinstance(resume_from, str | Path) else None
        try:
            if self.session is None:
                self._open(bool(resume_from), checkpoint)
            elif resume_from:
                if checkpoint is None:
                    self.session.folder.check_resumable()
                self.session.resume(checkpoint)
            yield self.opened_session
        except BaseException:
            if not self._taken_apart().__exit__(*sys.exc_info()):
                raise

    def _open(self, resuming: bool, checkpoint: Path | None) -> None:
        self._take_own_folder(resuming and checkpoint is None)
        if resuming:
            self.args = replace(self.args, resume=True)
        parts = self._parts
        connections = self.connections or parts.enter_context(script_connections(self.args, self.given, checkpoint))
        self.session = parts.enter_context(open_session(self.args, connections, self.given))
        if self.given.model is not None:
            self.given = replace(self.given, model=self.session.learner.policy.model, adapted=True)
        self.reporter = parts.enter_context(closing(Reporter(self.session, self.callbacks)))
        weakref.finalize(self, parts.close)  # at the end of the script, if nothing closed them before
        if self.args.resume:
            self.session.resume(checkpoint)

    def _take_own_folder(self, resume: bool) -> None:
        """Make the folder of a run that is called after the time: others may start in the same second."""
        if self._unnamed and self.connections is None:
            self.args = self.callbacks.args = self._parts.enter_context(shared_folder(self.args, resume=resume))
            self._unnamed = False

    def _taken_apart(self) -> ExitStack:
        parts, self._parts, self.session = self._parts, ExitStack(), None
        return parts

    def close(self) -> None:
        """End the servers, the rollout worker and the reward processes. What was trained is in the run folder."""
        self._taken_apart().close()

    @property
    def opened_session(self) -> Session:
        if self.session is None:
            raise UsageError("the trainer is not running", hint="call train() first")
        return self.session

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
            return self.reporter.evaluate(session.first_step - 1)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """The model, or its adapter, as transformers and vLLM load it, in `output_dir` (default RUN/model); the critic,
        where there is one, in its folder `critic` (default RUN/critic)."""
        folder = RunFolder(self.args.output_dir or "")
        model, critic = folder.model, folder.critic
        if output_dir:
            model, critic = Path(output_dir), Path(output_dir) / "critic"
        if self.session is not None:
            self.session.save_model(model, critic)
        elif not folder.model.is_dir():
            raise UsageError("there is no trained model yet", hint="call train() first")
        else:
            for written, target in ((folder.model, model), (folder.critic, critic)):
                if written.is_dir() and written != target:
                    shutil.copytree(written, target, dirs_exist_ok=True)


class PPOTrainer(GRPOTrainer):
    """The same with a critic: proximal policy optimization (arXiv:1707.06347), or what args.algorithm names."""

    settings = PPOConfig


class RLOOTrainer(GRPOTrainer):
    """The same with the mean of the other completions as baseline (arXiv:2402.14740)."""

    settings = RLOOConfig
