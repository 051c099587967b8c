"""What `GRPOTrainer.train()` needs around it when a script calls it: run folder, model path, servers and worker."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postrl.connections import Connections
from postrl.console import note
from postrl.errors import PostrlError
from postrl.launch.logs import following
from postrl.launch.model import check_model, local_model
from postrl.launch.siblings import placement_of, siblings, with_engine
from postrl.launch.summary import SCRIPT_RESUMES, next_calls, resume_advice, show_summary
from postrl.learning.hub import check_access
from postrl.run_folder import RunFolder

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.session import Given


@contextlib.contextmanager
def script_connections(config: GRPOConfig, given: Given) -> Iterator[Connections]:
    """Prepare the run folder and start the siblings, as the launcher does for `postrl grpo`.

    Under `accelerate launch script.py` rank 0 does it and the others wait for its addresses.
    """
    config = with_engine(config)
    folder = RunFolder(config.output_dir or "")
    if not _is_main():
        yield _share(None)
        return
    if given.model is None:
        check_model(config)
    check_access(config.push_to_hub)
    folder.prepare(config)
    note(f"run folder: {folder.path} (logs in {folder.logs})")
    path = _model_path(config, given, folder)
    job = given.job.dumps() if given.job is not None and config.engine == "vllm" else None
    with siblings(
        config, folder, placement_of(config), model_path=path, job=job, peft_config=_peft_config(given)
    ) as around:
        try:
            yield _share(around.connections)
        except Exception:
            around.check()  # a sibling that died says more than who lost it
            raise


@contextlib.contextmanager
def telling(config: GRPOConfig) -> Iterator[None]:
    """Around a script's training: what its processes note while it runs, and in the end what the command line says too.
    On stderr, once: stdout is the script's own, and of several ranks the first one speaks."""
    if not _is_main():
        yield
        return
    folder = RunFolder(config.output_dir or "")
    try:
        with following(folder.notes, note):
            yield
    except KeyboardInterrupt:
        if _saved(folder):
            show_summary(config, folder, next_calls, file=sys.stderr)
        else:
            note(f"stopped at once; {resume_advice(folder, SCRIPT_RESUMES)}")
        raise
    except PostrlError as error:
        if folder.progress() is not None:
            error.hint = "; ".join(filter(None, [error.hint, resume_advice(folder, SCRIPT_RESUMES)]))
        raise
    show_summary(config, folder, next_calls, file=sys.stderr)


def _is_main() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _saved(folder: RunFolder) -> bool:
    """Whether the last finished step has a checkpoint."""
    step, _ = folder.progress() or (0, 0)
    return (folder.checkpoints / f"step_{step:06d}").exists()


def _peft_config(given: Given) -> Any:
    """Of the adapter that a script brings or asks for; None: the --lora settings decide."""
    return given.peft_config or next(iter((getattr(given.model, "peft_config", None) or {}).values()), None)


def _model_path(config: GRPOConfig, given: Given, folder: RunFolder) -> str:
    """Where servers find the initial model; one that only exists as an object is saved for them."""
    if given.model is None:
        return local_model(config)
    if config.engine != "vllm":
        return config.model
    from postrl.learning.loading import load_tokenizer

    path = folder.weights / "initial"
    with folder.writing("the initial model"):
        _save_without_adapter(given.model, path)
        (given.tokenizer or load_tokenizer(config, config.model)).save_pretrained(path)
    return str(path)


def _save_without_adapter(model: Any, path: Path) -> None:
    """A model as servers load it. An adapter reaches them with the first push."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    state = {
        name.replace(".base_layer", ""): tensor for name, tensor in base.state_dict().items() if "lora_" not in name
    }
    base.save_pretrained(path, state_dict=state)


def _share(connections: Connections | None) -> Connections:
    """Rank 0's addresses on every rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        assert connections is not None
        return connections
    from postrl.learning.sharding import this_rank

    ranks = this_rank()
    import json

    mine = json.dumps(connections.to_env()).encode() if connections is not None else b""
    return Connections.from_env(json.loads(ranks.broadcast(mine)))


@contextlib.contextmanager
def finishing_on_ctrl_c(folder: RunFolder) -> Iterator[None]:
    """Ctrl-C once: finish the step, save, then raise KeyboardInterrupt. Twice: raise it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def on_interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        folder.request_stop()
        note("finishing the step, then saving; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
