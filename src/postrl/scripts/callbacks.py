"""transformers.TrainerCallback objects in our loop: their events, with the state, the control and the parts they know.

They are called in the main process. A step of ours may have several optimizer steps (`minibatches`, `num_iterations`): global_step
counts ours, and on_pre_optimizer_step and on_optimizer_step are called for each of theirs. on_substep_end, on_prediction_step
and on_predict have no counterpart; the data loaders are None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from postrl.console import note
from postrl.host.ranks import is_main, local_rank
from postrl.scripts.metric_names import with_trls_names


class LearningRate:
    """What is read of a scheduler: postrl sets the rate itself."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


class Callbacks:
    """Calls each event on every callback that has it.

    Args:
        callbacks: objects, or classes to make one of.
        args: the settings.
        parts: what callbacks get beside them, by transformers' names: model, processing_class.
    """

    def __init__(self, callbacks: Sequence[Any], args: Any = None, **parts: Any) -> None:
        from transformers.trainer_callback import TrainerControl, TrainerState

        self.callbacks: list[Any] = []
        self.state, self.control, self.args = TrainerState(), TrainerControl(), args
        self.state.is_world_process_zero = is_main()
        self.state.is_local_process_zero = local_rank() == 0
        self.parts = dict.fromkeys(
            ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
        )
        self.parts |= parts
        self.summary: dict[str, float] = {}
        self._losses: list[float] = []
        self._hooks: list[Any] = []
        """On the optimizer."""
        self._done = self._epoch = 0
        self._began: float | None = None
        self._set_steps()
        for callback in callbacks:
            self.add(callback)

    # -- which -------------------------------------------------------------------------------------------------------

    def add(self, callback: Any) -> None:
        """An object, or a class to make one of."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def pop(self, callback: Any) -> Any:
        """Take out an object, or the first one of a class; None where there is none."""
        found = next((c for c in self.callbacks if c is callback or c == callback or _is_a(c, callback)), None)
        if found is not None:
            self.callbacks.remove(found)
        return found

    # -- events ------------------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        self._call("on_init_end")

    def on_train_begin(self, max_steps: int, done: int, **parts: Any) -> None:
        """Training begins, or goes on after `done` steps, with further parts: model, processing_class, optimizer."""
        self.parts |= parts
        self.state.max_steps, self.state.global_step, self._done = max_steps, done, done
        self._set_steps()
        self.state.num_train_epochs = math.ceil(getattr(self.args, "num_train_epochs", 1))
        self._began, self._losses, self._epoch = time.monotonic(), [], -1
        self.control.should_training_stop = False
        if (optimizer := self.parts["optimizer"]) is not None:
            self.parts["lr_scheduler"] = LearningRate(optimizer)
            for hook in self._hooks:  # of a call of train() before this one
                hook.remove()
            self._hooks = [
                optimizer.register_step_pre_hook(lambda *_: self._call("on_pre_optimizer_step")),
                optimizer.register_step_post_hook(lambda *_: self._call("on_optimizer_step")),
            ]
        self._call("on_train_begin")

    def on_step_begin(self) -> None:
        control = self.control
        if (epoch := int(self.state.epoch or 0)) != self._epoch:
            if self._epoch >= 0:
                self._call("on_epoch_end")
            self._epoch = epoch
            self._call("on_epoch_begin")
        control.should_log = control.should_evaluate = control.should_save = False
        self._call("on_step_begin")

    def on_step_end(self, step: int, epoch: float | None = None) -> None:
        self.state.global_step = step
        if epoch is not None:
            self.state.epoch = float(epoch)
        self._call("on_step_end")
        if self.control.should_epoch_stop:
            self.control.should_epoch_stop = False
            note(
                "a callback set should_epoch_stop: an epoch has no end of its own here; should_training_stop ends the run"
            )

    def on_log(self, metrics: Mapping[str, Any]) -> None:
        """The metrics of a step. Callbacks get them every logging_steps steps, and when one asked for them."""
        if (loss := metrics.get("policy/loss")) is not None:
            self._losses.append(loss)
        if self.state.global_step % self.state.logging_steps == 0 or self.control.should_log:
            self.log(metrics)
            self.control.should_log = False

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Give callbacks these metrics now."""
        logs = {"epoch": self.state.epoch, "step": self.state.global_step, **with_trls_names(metrics)}
        self.state.log_history.append(dict(logs))
        self._call("on_log", logs=logs)

    def on_evaluate(self, metrics: Mapping[str, Any]) -> None:
        values = with_trls_names(metrics)
        self.log(values)
        self.control.should_evaluate = False
        self._call("on_evaluate", metrics=values)
        self._note_best(values)

    def on_save(self) -> None:
        self.control.should_save = False
        self._call("on_save")

    def on_push_begin(self) -> None:
        self._call("on_push_begin")

    def on_train_end(self) -> None:
        seconds = time.monotonic() - (self._began or time.monotonic())
        rate = (self.state.global_step - self._done) / seconds if seconds else 0.0
        self.summary = {
            "train_runtime": seconds,
            "train_steps_per_second": rate,
            "train_samples_per_second": rate * getattr(self.args, "rollouts_per_step", 0),
            "train_loss": sum(self._losses) / len(self._losses) if self._losses else 0.0,
        }
        if self._epoch >= 0:
            self._call("on_epoch_end")
        self.log(self.summary)
        self._call("on_train_end")

    def _set_steps(self) -> None:
        """logging_steps and its like in steps, where they may be a share of all."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            value = getattr(self.args, name, 1)
            steps = max(1, math.ceil(value * self.state.max_steps) if 0 < value < 1 else int(value))
            setattr(self.state, name, steps)

    def _note_best(self, metrics: Mapping[str, Any]) -> None:
        """The best value of metric_for_best_model so far, which EarlyStoppingCallback compares with."""
        if not (name := getattr(self.args, "metric_for_best_model", None)):
            return
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
        best, upwards = self.state.best_metric, self.args.greater_is_better
        if value is not None and (best is None or (value > best if upwards else value < best)):
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step

    def _call(self, event: str, **values: Any) -> None:
        for callback in self.callbacks:
            if (method := getattr(callback, event, None)) is not None:
                copies = {name: dict(value) for name, value in values.items()}
                self.control = method(self.args, self.state, self.control, **self.parts, **copies) or self.control


def _is_a(callback: Any, kind: Any) -> bool:
    return isinstance(kind, type) and isinstance(callback, kind)
