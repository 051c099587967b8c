"""transformers' callbacks in our loop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback

from postrl.scripts.callbacks import Callbacks


class Recorder(TrainerCallback):
    """A callback as people write them for transformers' Trainer."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.seen.append(("begin", args, state.global_step, state.max_steps))

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(("step", state.global_step, len(state.log_history)))

    def on_log(self, args, state, control, logs=None, **kwargs):
        assert logs.get("reward") == logs.get("reward/mean")
        self.seen.append(("log", logs.get("reward"), state.epoch))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen.append(("evaluate", metrics))

    def on_save(self, args, state, control, **kwargs):
        self.seen.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        assert state.log_history[-1]["train_runtime"] >= 0
        self.seen.append(("end", state.log_history[-1]["epoch"]))


def test_a_callback_sees_the_run_as_in_transformers():
    recorder = Recorder()
    callbacks = Callbacks([recorder], "the settings")
    callbacks.on_train_begin(10, 2)
    callbacks.on_step_end(3, epoch=1.5)
    callbacks.on_log({"reward/mean": 0.5})
    callbacks.on_evaluate({"eval/x/reward": 1.0})
    callbacks.on_save()
    callbacks.on_train_end()
    assert recorder.seen == [
        ("begin", "the settings", 2, 10),
        ("step", 3, 0),
        ("log", 0.5, 1.5),
        ("log", None, 1.5),
        ("evaluate", {"eval/x/reward": 1.0, "eval_reward": 1.0}),
        ("save", 3),
        ("log", None, 1.5),
        ("end", 1.5),
    ]


def test_a_class_is_made_an_object():
    assert isinstance(Callbacks([Recorder]).callbacks[0], Recorder)


def test_callbacks_are_added_and_taken_out_by_class_or_object():
    callbacks, printer = Callbacks([Recorder]), PrinterCallback()
    callbacks.add(printer)
    assert callbacks.pop(printer) is printer
    assert isinstance(callbacks.pop(Recorder), Recorder)
    assert callbacks.pop(Recorder) is None
    assert callbacks.callbacks == []


@dataclass
class Args:
    """The settings that callbacks and their keeper read."""

    logging_steps: float = 1
    metric_for_best_model: str | None = None
    greater_is_better: bool = True
    load_best_model_at_end: bool = False
    eval_strategy: str = "steps"


class Events(TrainerCallback):
    """Writes down the names of all events."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda args, state, control, **kwargs: self.seen.append(
            f"{name.removeprefix('on_')} {state.global_step}"
        )


def run_steps(callbacks, count, epochs_per_step=0.5):
    callbacks.on_train_begin(count, 0)
    for step in range(1, count + 1):
        callbacks.on_step_begin()
        callbacks.on_step_end(step, step * epochs_per_step)
        callbacks.on_log({"reward/mean": step / 10, "policy/loss": 1.0 / step})
    callbacks.on_train_end()


def test_epochs_and_steps_begin_and_end_as_in_transformers():
    events = Events()
    run_steps(Callbacks([events]), 3)
    steps = "train_begin 0, epoch_begin 0, step_begin 0, step_end 1, log 1, step_begin 1, step_end 2, log 2"
    rest = "epoch_end 2, epoch_begin 2, step_begin 2, step_end 3, log 3, epoch_end 3, log 3, train_end 3"
    assert ", ".join(events.seen) == f"{steps}, {rest}"


def test_optimizer_steps_are_events_of_their_own():
    events, callbacks = Events(), Callbacks([])
    callbacks.add(events)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    callbacks.on_train_begin(1, 0, optimizer=optimizer)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert events.seen == ["train_begin 0", "pre_optimizer_step 0", "optimizer_step 0"]
    assert callbacks.parts["lr_scheduler"].get_last_lr() == [0.5]
    callbacks.on_train_begin(2, 1, optimizer=optimizer)  # train() is called again
    optimizer.step()
    assert events.seen[3:] == ["train_begin 1", "pre_optimizer_step 1", "optimizer_step 1"]


@pytest.mark.parametrize(("logging_steps", "logged"), [(1, [1, 2, 3, 4, 4]), (2, [2, 4, 4]), (0.75, [3, 4]), (10, [4])])
def test_logs_come_every_logging_steps_and_in_the_end(logging_steps, logged):
    callbacks = Callbacks([], Args(logging_steps))
    run_steps(callbacks, 4)
    assert [row["step"] for row in callbacks.state.log_history] == logged
    assert callbacks.summary["train_loss"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_a_callback_that_asks_for_the_log_gets_it():
    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_log = state.global_step == 3
            return control

    callbacks = Callbacks([Asks], Args(logging_steps=10))
    run_steps(callbacks, 4)
    assert [row["step"] for row in callbacks.state.log_history] == [3, 4]


def test_callbacks_get_the_parts_of_the_run():
    seen = {}

    class Parts(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, processing_class=None, train_dataloader=0, **kwargs):
            seen.update(kwargs, model=model, processing_class=processing_class, train_dataloader=train_dataloader)

    callbacks = Callbacks([Parts], None, model="before")
    callbacks.on_train_begin(1, 0, model="m", processing_class="p")
    callbacks.on_step_end(1)
    assert seen == {
        **{"model": "m", "processing_class": "p", "optimizer": None, "lr_scheduler": None},
        **{"train_dataloader": None, "eval_dataloader": None},
    }


def test_early_stopping_stops_when_the_metric_no_longer_rises():
    callbacks = Callbacks([EarlyStoppingCallback(1)], Args(metric_for_best_model="reward"))
    callbacks.on_train_begin(10, 0)
    for reward, stops in ((0.2, False), (0.4, False), (0.3, True)):
        callbacks.on_evaluate({"eval/rows/reward": reward})
        assert callbacks.control.should_training_stop is stops
    assert callbacks.state.best_metric == 0.4


def test_what_a_callback_asks_for_is_heard_and_a_save_is_asked_for_once():
    class Wishes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                control.should_save = True
            else:
                control.should_training_stop = True

    callbacks = Callbacks([Wishes])
    callbacks.on_step_end(1)
    assert (callbacks.control.should_save, callbacks.control.should_training_stop) == (True, False)
    callbacks.on_step_begin()
    callbacks.on_step_end(2)
    assert (callbacks.control.should_save, callbacks.control.should_training_stop) == (False, True)


def test_an_object_that_has_only_some_events_is_enough():
    class OnlySave:
        saved = 0

        def on_save(self, args, state, control, **kwargs):
            self.saved += 1

    only = OnlySave()
    callbacks = Callbacks([only])
    callbacks.on_step_end(1)
    callbacks.on_save()
    assert only.saved == 1


def test_what_a_callback_changes_in_its_copy_is_not_changed_for_others(capsys):
    logs = {"reward/mean": 0.5, "total_flos": 1}
    Callbacks([PrinterCallback]).on_log(logs)  # it takes total_flos out before it prints
    assert logs == {"reward/mean": 0.5, "total_flos": 1}
    assert "reward/mean" in capsys.readouterr().out


def test_what_a_callback_raises_ends_the_run():
    class Broken(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Callbacks([Broken]).on_step_end(1)
