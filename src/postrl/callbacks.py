"""transformers.TrainerCallback objects in our loop: the events they know, with a state and a control they can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Control:
    """What a callback may ask for; transformers' names."""

    def __init__(self) -> None:
        self.should_training_stop = False
        self.should_save = False
        self.should_evaluate = False
        self.should_log = False
        self.should_epoch_stop = False


class State:
    """What a callback may read; transformers' names."""

    def __init__(self) -> None:
        self.global_step = 0
        self.max_steps = 0
        self.epoch = 0.0
        self.log_history: list[dict[str, Any]] = []
        self.is_world_process_zero = True
        self.is_local_process_zero = True


class Callbacks:
    """Calls each event on every callback that has it."""

    def __init__(self, callbacks: Sequence[Any], args: Any = None) -> None:
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks]
        self.state, self.control = State(), Control()
        self.args = args

    def on_train_begin(self, max_steps: int, done: int) -> None:
        self.state.max_steps, self.state.global_step = max_steps, done
        self._call("on_train_begin")

    def on_step_end(self, step: int) -> None:
        self.state.global_step = step
        self.control.should_save = False
        self._call("on_step_end")

    def on_log(self, metrics: Mapping[str, Any]) -> None:
        self.state.epoch = float(metrics.get("epoch") or 0.0)
        self.state.log_history.append(dict(metrics))
        self._call("on_log", logs=dict(metrics))

    def on_evaluate(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._call("on_evaluate", metrics=dict(metrics))

    def on_save(self, step: int) -> None:
        self._call("on_save")

    def on_train_end(self) -> None:
        self._call("on_train_end")

    def _call(self, event: str, **values: Any) -> None:
        for callback in self.callbacks:
            if (method := getattr(callback, event, None)) is not None:
                method(self.args, self.state, self.control, **values)
