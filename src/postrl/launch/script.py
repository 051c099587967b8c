"""What `GRPOTrainer.train()` needs around it when a script calls it: run folder, model path, servers and worker."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from postrl.config.engines import engine_of, servers_of
from postrl.config.python_hints import hints_in_python
from postrl.console import note
from postrl.errors import PostrlError, UsageError
from postrl.host.limits import settle
from postrl.host.ranks import is_main, rank, world_size
from postrl.host.stopping import GracefulStop, came_of_the_stop, without_the_step
from postrl.launch.logs import following
from postrl.launch.model import local_model, with_adapter
from postrl.launch.owner import run_folder_of, with_own_folder, writing_as_rank
from postrl.launch.placement import running_ranks
from postrl.launch.preflight import preflight
from postrl.launch.siblings import placement_of, siblings, with_engine
from postrl.launch.summary import SCRIPT_RESUMES, next_calls, resume_advice, show_summary
from postrl.run.connections import Connections
from postrl.run.folder import RunFolder, with_run_folder

if TYPE_CHECKING:
    from postrl.config import GRPOConfig
    from postrl.given import Given
    from postrl.learning.sharding import Ranks


@contextlib.contextmanager
def script_connections(config: GRPOConfig, given: Given, checkpoint: Path | None = None) -> Iterator[Connections]:
    """Prepare the run folder and start the siblings, as the launcher does for `postrl grpo`.

    Under `accelerate launch script.py` rank 0 does it and the others wait for its addresses.

    Args:
        checkpoint: the one to continue from; default: the newest in the run folder.
    """
    config = with_engine(config)
    if not is_main():
        addresses = Connections.from_env(_share(None))
        with writing_as_rank(RunFolder(config.output_dir or "")):
            yield addresses
        return
    settle(note, servers=servers_of(config))
    placement = placement_of(config, running=running_ranks())
    preflight(config, given)
    with run_folder_of(config, checkpoint) as (_, folder):
        note(f"run folder: {folder.path} (logs in {folder.logs})")
        if config.reward_workers and any(spec.kind != "builtin" for spec in given.rewards):
            note(
                f"reward functions run in processes of their own: what they print is in {folder.logs / 'rewards.log'}, and what "
                "they change (lists, counters, globals) stays there"
            )
        path = _model_path(config, given, folder)
        with siblings(
            config, folder, placement, model_path=path, given=given, peft_config=_peft_config(given)
        ) as around:
            try:
                yield Connections.from_env(_share(around.connections.to_env()))
            except Exception:
                around.check()  # a sibling that died says more than who lost it
                raise


def settings_of(args: GRPOConfig, model: Any, given: Given) -> GRPOConfig:
    """The settings of a script's run, with the names of its model and its folder, and what an adapter says.

    Args:
        model: the name, if the script gives one.

    Raises:
        UsageError: the adapter cannot be trained on, or contradicts what is given.
    """
    name = str(model) if isinstance(model, str | PurePath) else args.model or given.model_name
    config = with_run_folder(with_adapter(replace(args, model=name), loaded=given.model is not None))
    if config.adapter and given.peft_config is not None:
        raise UsageError(
            f"the run goes on from the adapter {config.adapter}, and peft_config asks for a new one",
            hint="leave one of them out",
        )
    return config


@contextlib.contextmanager
def shared_folder(config: GRPOConfig, *, resume: bool = False) -> Iterator[GRPOConfig]:
    """The settings with a run folder of their own (see `with_own_folder`), the same on every rank; what is empty in the end
    is taken away.

    Raises:
        UsageError: `resume`, and nothing says which run.
    """
    mine: dict[str, str] | None = None
    if is_main():
        config = with_own_folder(replace(config, run_name=None, output_dir=None, resume=resume))
        mine = {"run_name": config.run_name or "", "output_dir": config.output_dir or ""}
    shared = _share(mine)
    try:
        yield replace(config, run_name=shared["run_name"], output_dir=shared["output_dir"])
    finally:
        with contextlib.suppress(OSError):  # it holds something
            Path(shared["output_dir"]).rmdir()


@contextlib.contextmanager
def telling(config: GRPOConfig) -> Iterator[None]:
    """Around a script's training: what its processes note while it runs, and in the end what the command line says too.
    On stderr, once: stdout is the script's own, and of several ranks the first one speaks."""
    if not is_main():
        yield
        return
    folder = RunFolder(config.output_dir or "")
    try:
        with following(folder.notes, note), hints_in_python():
            yield
    except KeyboardInterrupt:
        if _saved(folder):
            show_summary(config, folder, next_calls, file=sys.stderr)
        else:
            note(f"stopped at once; {resume_advice(folder, SCRIPT_RESUMES)}")
        raise
    except PostrlError as error:
        if folder.progress() is not None and not isinstance(error, UsageError):  # one that could not start says nothing
            error.advise(resume_advice(folder, SCRIPT_RESUMES))
        raise
    show_summary(config, folder, next_calls, file=sys.stderr)


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
    if not engine_of(config).servers:
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


def _share(mine: dict[str, str] | None) -> dict[str, str]:
    """What rank 0 has, on every rank."""
    if world_size() == 1:
        assert mine is not None
        return mine
    from postrl.learning.sharding import this_rank

    message = json.dumps(mine).encode() if mine is not None else b""
    return dict(json.loads(this_rank().broadcast(message)))


def stop_of(config: GRPOConfig, by_script: bool) -> GracefulStop:
    """The graceful stop of this process: a script's, or a rank's, whom signals to a whole job reach too."""
    folder = RunFolder(config.output_dir or "")
    in_charge = by_script and is_main()

    def request(name: str) -> None:
        if in_charge:
            folder.request_stop()
        elif not folder.stop_requested():
            folder.request_stop(f"rank {rank()} got {name}")

    return GracefulStop(request, folder.note, on_hangup=config.on_hangup, training=not by_script, in_charge=in_charge)


@contextlib.contextmanager
def ending_the_script(stop: GracefulStop, ranks: Ranks) -> Iterator[None]:
    """What a signal stopped ends the script too, on every rank: KeyboardInterrupt, once everything is saved."""
    try:
        yield
    except PostrlError as error:
        if not (stop.asked and came_of_the_stop(error)):
            raise
        note(without_the_step(error))
        raise KeyboardInterrupt(stop.asked) from error
    if ranks.max([float(stop.asked is not None)])[0]:
        raise KeyboardInterrupt(stop.asked or "another rank was told to stop")
