"""The loop of RL post-training, on one page. Everything else is in the modules that the verbs call.

generate -> score -> assess -> advantage -> update -> sync weights
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from postrl.algorithms.aggregate import Denoms
from postrl.algorithms.objective import objective, with_advantages
from postrl.algorithms.reduce import accumulate
from postrl.callbacks import Callbacks
from postrl.config import GRPOConfig
from postrl.connections import Connections
from postrl.errors import UsageError
from postrl.learning.batch import make_batch
from postrl.learning.checkpoint import save_checkpoint
from postrl.learning.learner import UpdateReport
from postrl.messages import decode, decode_groups, encode_groups
from postrl.report import Reporter
from postrl.rewards.registry import resolve as resolve_reward
from postrl.run_folder import RunFolder, with_run_folder
from postrl.session import Given, Session, open_session
from postrl.types import Batch, Group
from postrl.worker import Job

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
        model: hub id, folder, packaged name or a loaded transformers (or peft) model; default: args.model.
        reward_funcs: one or several functions `f(prompts, completions, **columns) -> list[float | None]`, or names as
            for --reward; default: args.reward, else the data set's own.
        args: the settings.
        train_dataset, eval_dataset: a datasets.Dataset or a list of dicts with a `prompt` column; default:
            args.dataset, args.eval_dataset.
        processing_class: the tokenizer; default: the model's.
        peft_config: a peft.LoraConfig; default: args.lora_rank and its companions.
        callbacks: transformers.TrainerCallback objects.
    """

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
        from dataclasses import replace

        args = args or GRPOConfig()
        self.args = with_run_folder(
            replace(args, model=model if isinstance(model, str) else args.model or _name_of(model))
        )
        funcs = (
            [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        )
        rewards = [resolve_reward(func) for func in funcs]
        job = Job(rewards=rewards, train=train_dataset, evaluate=eval_dataset, tokenizer=processing_class)
        self.given = Given(None if isinstance(model, str) else model, peft_config, job, processing_class)
        self.callbacks = Callbacks(callbacks or [], self.args)
        self.connections: Connections | None = None
        self.session: Session | None = None
        self.times: dict[str, float] = {}

    # -- the page ------------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> dict[str, float | None]:
        """Run the loop. `resume_from_checkpoint`: True continues from the newest checkpoint in output_dir, a path from
        that one. Returns the metrics of the last step.

        Raises:
            PostrlError: whatever keeps the run from going on, with a hint; checkpoints written before are intact.
        """
        with self.opened(resume_from_checkpoint):
            self.sync_weights()  # the samplers start from our weights
            for step in self.progress():
                groups = self.generate(step)  # rollout + rewards: prompts -> scored groups, version-tagged
                batch = self.assess(groups)  # learning/    the forward passes that the algorithm needs: prox, ref
                batch = self.advantage(batch)  # algorithms/  pure: advantages, masks
                stats = self.update(batch)  # learning/    loss, backward, optimizer step: the next weight version
                self.sync_weights()  # weights/     the samplers now hold it
                self.report(step, groups, batch, stats)  # metrics, rollouts, evaluation, checkpoint
            return self.reporter.last

    # -- the verbs -----------------------------------------------------------------------------------------------------

    @timed("generate")
    def generate(self, step: int) -> list[Group]:
        """The scored groups of this step, the same on every rank."""
        s = self.opened_session
        message = b""
        if s.source is not None:
            groups, self.rollout_metrics = s.source.groups(step, s.version)
            if s.ranks.size == 1:
                return groups
            message = encode_groups("groups", groups)
        _, data, arrays = decode(s.ranks.broadcast(message))
        return decode_groups(data, arrays)

    @timed("assess")
    def assess(self, groups: list[Group]) -> Batch:
        """The groups as tensors, with the log-probs that the algorithm needs before the update."""
        s = self.opened_session
        return s.learner.assess(make_batch(groups, s.version, s.ranks.device), s.algorithm.needs)

    def advantage(self, batch: Batch) -> Batch:
        """Rewards to advantages; what is not trained on leaves the mask here, before denominators are counted."""
        algorithm = self.opened_session.algorithm
        return with_advantages(batch, algorithm, mask_truncated=self.args.mask_truncated_completions)

    @timed("update")
    def update(self, batch: Batch) -> UpdateReport:
        """One update phase; afterwards the learner holds the next weight version."""
        s = self.opened_session

        def loss(logp_BT: Any, entropy_BT: Any, micro: Batch, denoms: tuple[float, float, int]) -> Any:
            return objective(logp_BT, micro, s.algorithm, Denoms(*denoms), entropy_BT=entropy_BT)

        report = s.learner.update(batch, loss, accumulate)
        s.version += 1
        return report

    @timed("sync")
    def sync_weights(self) -> None:
        """Publish the learner's weights; returns when every sampler serves them."""
        s = self.opened_session
        self.sync_metrics = s.sync.publish(s.version)

    def report(self, step: int, groups: list[Group], batch: Batch, stats: UpdateReport) -> None:
        """Metrics, stored rollouts, evaluation and checkpoint of a finished step."""
        s = self.opened_session
        self.stopping = self.reporter.should_stop()
        last = step == s.total_steps or self.stopping
        evaluation: dict[str, float] = {}
        if s.has_evaluation and (last or (self.args.eval_steps and step % self.args.eval_steps == 0)):
            evaluation = self.evaluate_now(step)
        self.reporter.step(
            step, groups, batch, stats, self.times, {**self.sync_metrics, **evaluation}, self.rollout_metrics
        )
        self.times = {}
        if last or (self.args.save_steps and step % self.args.save_steps == 0) or self.callbacks.control.should_save:
            save_checkpoint(s.folder.checkpoints, step, s.learner, s.state(), keep=self.args.save_total_limit)
            self.callbacks.on_save(step)
        if last:
            self.save_model()

    # -- around the loop -----------------------------------------------------------------------------------------------

    def opened(self, resume_from: bool | str | Path | None = None) -> ExitStack:
        """The run with all its parts, as a context manager: servers and worker (a script's), session, reporter."""
        from dataclasses import replace

        from postrl.launch.script import script_connections

        if resume_from:
            self.args = replace(self.args, resume=True)
        stack = ExitStack()
        try:
            connections = self.connections or stack.enter_context(script_connections(self.args, self.given))
            path = None if isinstance(resume_from, bool) else resume_from
            self.session = stack.enter_context(open_session(self.args, connections, self.given, resume_from=path))
            self.reporter = stack.enter_context(
                Reporter(self.session, self.callbacks, at_terminal=self.connections is None)
            )
            self.rollout_metrics: dict[str, Any] = {}
            stack.callback(self._closed)
        except BaseException as error:
            if not stack.__exit__(type(error), error, error.__traceback__):
                raise
        return stack

    @property
    def opened_session(self) -> Session:
        if self.session is None:
            raise UsageError("the trainer is not running", hint="call train() first")
        return self.session

    def _closed(self) -> None:
        self.session = None

    def progress(self) -> Iterator[int]:
        """The steps that are left; ends early when a stop is asked for (after the step, saved)."""
        s = self.opened_session
        self.callbacks.on_train_begin(s.total_steps, s.first_step - 1)
        if s.has_evaluation and s.first_step == 1:
            self.reporter.evaluation(0, self.evaluate_now(0))
        self.times = {}
        for step in range(s.first_step, s.total_steps + 1):
            yield step
            if self.stopping:
                break
        self.callbacks.on_train_end()

    def evaluate_now(self, step: int) -> dict[str, float]:
        """The evaluation set under the weights that the samplers hold now; stored like rollouts."""
        s = self.opened_session
        if s.source is None:
            return {}
        return self.reporter.evaluate(step, *s.source.evaluate(s.version))

    def evaluate(self) -> dict[str, float]:
        """Metrics of the evaluation set: in a run under its current weights, otherwise under the initial ones."""
        if self.session is not None:
            return self.evaluate_now(self.session.version)
        with self.opened():
            self.sync_weights()
            if not self.opened_session.has_evaluation:
                raise UsageError("there is no evaluation set", hint="give eval_dataset")
            return self.evaluate_now(0)

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """The model as transformers and vLLM load it, in `output_dir` (default RUN/model); after train(), a copy of
        what it saved."""
        folder = RunFolder(self.args.output_dir or "").model
        if self.session is not None:
            self.session.learner.save_model(str(output_dir or folder), self.session.tokenizer)
        elif folder.is_dir():
            import shutil

            if output_dir is not None and Path(output_dir) != folder:
                shutil.copytree(folder, output_dir, dirs_exist_ok=True)
        else:
            raise UsageError("there is no trained model yet", hint="call train() first")


def _name_of(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def learner_main(run_dir: str | Path) -> int:
    """`postrl learner RUN`: one trainer rank of a run that the launcher started."""
    folder = RunFolder(run_dir)
    trainer = GRPOTrainer(args=GRPOConfig.from_yaml(folder.config))
    trainer.connections = Connections.from_env()
    with folder.reporting_errors("trainer"):
        trainer.train()
    return 0
