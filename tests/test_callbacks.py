"""transformers' callbacks in our loop."""

from __future__ import annotations

import pytest
from transformers import PrinterCallback, TrainerCallback

from postrl.callbacks import Callbacks


class Recorder(TrainerCallback):
    """A callback as people write them for transformers' Trainer."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.seen.append(("begin", args, state.global_step, state.max_steps))

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(("step", state.global_step, len(state.log_history)))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(("log", logs["reward/mean"], state.epoch))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen.append(("evaluate", metrics))

    def on_save(self, args, state, control, **kwargs):
        self.seen.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self.seen.append(("end", state.log_history[-1]["reward/mean"]))


def test_a_callback_sees_the_run_as_in_transformers():
    recorder = Recorder()
    callbacks = Callbacks([recorder], "the settings")
    callbacks.on_train_begin(10, 2)
    callbacks.on_step_end(3)
    callbacks.on_log({"reward/mean": 0.5, "epoch": 1.5})
    callbacks.on_evaluate(3, {"eval/x/reward": 1.0})
    callbacks.on_save(3)
    callbacks.on_train_end()
    assert recorder.seen == [
        ("begin", "the settings", 2, 10),
        ("step", 3, 0),
        ("log", 0.5, 1.5),
        ("evaluate", {"eval/x/reward": 1.0}),
        ("save", 3),
        ("end", 0.5),
    ]


def test_a_class_is_made_an_object():
    assert isinstance(Callbacks([Recorder]).callbacks[0], Recorder)


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
    callbacks.on_save(1)
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
