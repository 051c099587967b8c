"""Starts the command line as a user's shell would, and sees what it leaves: exit code, output, files, processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 900.0
"""Seconds a test waits for what takes some ten on an idle machine."""

MARK = "POSTRL_E2E"
"""Environment variable that all processes of one command share."""

SMALL_SERVER = ("--engine", "vllm", "--vllm-arg", "enforce-eager=true", "--max-model-len", "256")
SMALL_SERVER += ("--max-prompt-length", "200", "--vllm-arg", "max-num-batched-tokens=256")
"""The prompts of a step do not fit into one pass of the server: they must not be read in part (it would die of it)."""
SERVER_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}

SMALL = ("--model", "tiny", "--dataset", "arithmetic", "--engine", "transformers", "--prompts-per-step", "2")
SMALL += ("--num-generations", "4", "--max-completion-length", "8")
"""Steps of a fraction of a second."""
REWARDED = (*SMALL, "--reward", "rewards.py:letters", "--learning-rate", "1e-2")
"""The same with a reward that differs between random completions, and a rate at which weights visibly move."""


def wait_for(what: str, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What `condition` gives once that is true."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {patience:g} s for {what}"
        time.sleep(0.05)
    return found


@dataclass
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str
    survivors: list[str] = field(default_factory=list)
    """Command lines of its descendants that still lived some seconds later."""


class Command:
    """A command that runs in the workplace."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self._out, self._err = cwd / f".out-{self.mark}", cwd / f".err-{self.mark}"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = psutil.Popen(
                argv,
                cwd=cwd,
                env={**env, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text()

    def family(self) -> list[psutil.Process]:
        """The processes that it started, directly or not, and that live now; itself left out."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.process.pid and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def ended(self) -> bool:
        return self.process.poll() is not None

    def descendants(self) -> list[psutil.Process]:
        """By parent, not by environment as `family`: vLLM's engine writes its title over its environment. Nor by psutil's
        `children`, which leaves out processes that seem older than their parent: clocks of virtual machines jump."""
        processes, parents = {}, {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                processes[process.pid], parents[process.pid] = process, process.ppid()
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return [processes[pid] for pid in found - {self.process.pid}]

    def named(self, name: str) -> list[psutil.Process]:
        """Its descendants with this in their command line, but those that only start or hold the one that is meant."""
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if name in line and "launch.reaper" not in line and "accelerate.commands" not in line:
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def only(self, name: str) -> psutil.Process:
        """The one that is called so."""
        found = self.named(name)
        assert len(found) == 1, f"{found}; the command said:\n{self.said()}"
        return found[0]

    def wait(self, patience: float = PATIENCE) -> Finished:
        """Wait for its end, and up to half a minute for the end of what it started; the rest is killed and told."""
        try:
            self.process.wait(patience)
        except psutil.TimeoutExpired:
            raise AssertionError(f"no end after {patience:g} s; it said:\n{self.said()}") from None
        _, alive = psutil.wait_procs(self.family(), timeout=30)
        survivors = [_name(process) for process in alive]
        for process in alive:
            process.kill()
        return Finished(self.process.returncode, self._out.read_text(), self.said(), survivors)


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)


class Workplace:
    """A folder with a tiny model, a reward file and a home, in which commands run as for one user."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder, home
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        self.env = {**kept, "HOME": str(home), "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}
        self.env["OMP_THREAD_LIMIT"] = "1"  # tiny models gain nothing from more, and several may run side by side

    def start(self, *args: str, **env: str) -> Command:
        """`postrl ARGS`, started."""
        return Command([sys.executable, "-m", "postrl", *args], cwd=self.folder, env={**self.env, **env})

    def postrl(self, *args: str, **env: str) -> Finished:
        """`postrl ARGS`, to its end."""
        return self.start(*args, **env).wait()

    def script(self, path: Path, *args: str) -> Finished:
        """`python PATH ARGS`, to its end."""
        return Command([sys.executable, str(path), *args], cwd=self.folder, env=self.env).wait()

    def shell(self, line: str) -> Finished:
        """A line as a user types it, with `postrl` on the path."""
        path = f"{Path(sys.executable).parent}:{self.env['PATH']}"
        return Command(["/bin/sh", "-c", line], cwd=self.folder, env={**self.env, "PATH": path}).wait()

    def copy(self, folder: Path) -> Workplace:
        """A workplace of its own with the same files."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns(".out-*", ".err-*"))
        return Workplace(folder, self.home)

    def run(self, name: str) -> Run:
        return Run(self.folder / name)


class Run:
    """A run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def metrics(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl."""
        try:
            text = (self.path / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def steps(self) -> list[int]:
        return [row["step"] for row in self.metrics() if row["step"] > 0]

    def reached(self, step: int) -> bool:
        return max(self.steps(), default=0) >= step

    def rollouts(self) -> list[dict[str, Any]]:
        """The rows of all stored training steps."""
        import pyarrow.parquet as pq

        return [
            row for path in sorted(self.path.glob("rollouts/step_*.parquet")) for row in pq.read_table(path).to_pylist()
        ]

    def checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("checkpoints/step_*/state.json"))

    def weights(self) -> dict[str, Any]:
        """The tensors of the final model."""
        from safetensors.torch import load_file

        return load_file(self.path / "model" / "model.safetensors")


MACHINE_DEPENDENT = ("time/", "throughput/", "memory/")


def reproducible(row: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a step that depend on settings and seed alone."""
    return {
        name: value
        for name, value in row.items()
        if not name.startswith(MACHINE_DEPENDENT) and not name.endswith("/latency_p99")
    }


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Puts `folder`, with what it holds, on a file system of `size` bytes. Yields False where we may not mount one."""
    aside = folder.with_name(f"{folder.name}-aside")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    folder.rename(aside)
    folder.mkdir()
    mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    shutil.copytree(aside, folder, dirs_exist_ok=True)
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
