"""Weights through files: one new safetensors file per push, in shared memory where it has room.

    RUN/weights/latest.json                 {"transport": "disk", "version": 7, "path": ...}: what a restarted server is brought to
    RUN/weights/127.0.0.1-8000.lock         held while that server is updated
    /dev/shm/postrl-<run>-<digest>/weights-000007-x1y2z3.safetensors      or in RUN/weights/

A file is never written over: a server that has it mapped would be killed with SIGBUS. The servers need
`--weight-transfer-config '{"backend": "postrl_disk"}'` and POSTRL_WEIGHTS_DIR = `allowed_folders(RUN/weights)`.
No torch at the top: the launcher restores a restarted server with nothing but HTTP (postrl/weights/transports.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postrl.errors import PostrlError, ServerError, WaitTimeout
from postrl.host.files import take_lock, whole_file, write_whole
from postrl.servers.client import VLLMServer
from postrl.servers.lost import server_file
from postrl.weights.transport import NamedTensors, Pause, on_each, swap_weights

if TYPE_CHECKING:
    import torch

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "weights-"
POINTER = "latest.json"
NAME = "disk"
MARGIN = 64 << 20
"""Bytes that stay free beside a new file."""


class DiskTransport:
    """Publishes weights to `servers` through files that a pointer names: all weights, in one file a version.

    Args:
        servers: all samplers of the run, on this host or with the same folder mounted.
        folder: RUN/weights; made if it is missing.
        dtype: the servers' dtype, "float32" or "bfloat16"; weights are converted before they are written.
        server_deadline: seconds to wait for a server that is down (its owner restarts it).
        push_timeout: seconds one server may take to load what is pushed.
        pause: what becomes of requests in flight.
    """

    name, what = NAME, "weights"

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        folder: str | Path,
        dtype: str,
        *,
        server_deadline: float = 900.0,
        push_timeout: float = 600.0,
        pause: Pause | None = None,
    ) -> None:
        self.servers = list(servers)
        self.folder = Path(folder).absolute()  # what is published is found again by its whole path
        self.dtype, self.pause = dtype, pause
        self.server_deadline, self.push_timeout = server_deadline, push_timeout
        self.published: dict[int, Path] = {}
        """Versions that the servers hold, and where they lie."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def push(self, tensors: NamedTensors, version: int) -> None:
        """See `WeightTransport.push`. All of `tensors` is taken before anything can fail, so other ranks do not hang.

        Memory: on CPUs, tensors that already have the servers' dtype are not copied; others are, all at once.
        """
        weights = host_tensors(tensors, self.dtype)
        path = self.write(weights, version, roomy_folder(self.folder, sum(t.nbytes for t in weights.values())))
        del weights
        self.published = {v: at for v, at in self.published.items() if self.needed(v, version)} | {version: path}
        latest = {"transport": self.name, "version": version, **self.pointer(version)}
        write_whole(self.folder / POINTER, json.dumps(latest))
        on_each(self.servers, lambda server: self.deliver(server, latest))
        delete_all_but(self.folder, self.published.values())

    def write(self, weights: dict[str, torch.Tensor], version: int, folder: Path) -> Path:
        """The weights in a new file, or folder, in `folder`."""
        try:
            return self.save(weights, version, folder)
        except Exception as error:
            raise ServerError(
                f"the {self.what} of version {version} cannot be written to {folder}: {error}",
                hint="free some space, or move the run with --output-dir",
            ) from error

    def deliver(self, server: VLLMServer, latest: dict[str, Any]) -> None:
        """Load what the pointer names while nobody else updates the server. One that is down, or goes down on the way, is
        waited for, unless the run gives it up.

        Raises:
            PostrlError: what went wrong on a server that answers, or when `server_deadline` seconds have passed.
        """
        end = time.monotonic() + self.server_deadline
        while True:
            server.wait_until_healthy(max(0.0, end - time.monotonic()))
            try:
                with server_lock(self.folder, server, self.server_deadline):
                    self.load(server, latest)
                return
            except PostrlError:
                # A server that answers is broken, one that does not is being restarted; a dying one may answer once more.
                time.sleep(1.0)
                if server.health() or time.monotonic() > end:
                    raise

    def close(self) -> None:
        """Delete the files; servers keep what they have loaded."""
        remove_weights(self.folder)

    # -- what an adapter does otherwise ----------------------------------------------------------------------------------

    def save(self, weights: dict[str, torch.Tensor], version: int, folder: Path) -> Path:
        """A new file, there under its name only when it is complete."""
        from safetensors.torch import save_file

        path = folder / f"{PREFIX}{version:06d}-{secrets.token_hex(4)}.safetensors"
        with whole_file(path) as part:
            save_file(weights, part)
        return path

    def needed(self, version: int, newest: int) -> bool:
        """Whether an older version is still needed once `newest` is there."""
        return False

    def pointer(self, version: int) -> dict[str, Any]:
        """Where a published version is found."""
        return {"path": str(self.published[version])}

    def load(self, server: VLLMServer, latest: dict[str, Any]) -> None:
        """Bring a server to what a pointer names."""
        restore(server, latest, self.push_timeout, self.pause)


def restore(server: VLLMServer, latest: dict[str, Any], timeout: float, pause: Pause | None = None) -> None:
    """Load the version that a pointer names; it has `timeout` seconds. See `swap_weights`."""
    info = {"path": latest["path"]}
    swap_weights(server, latest["version"], lambda: server.update_weights(info, timeout), pause)


def host_tensors(tensors: NamedTensors, dtype: str) -> dict[str, torch.Tensor]:
    """The tensors in main memory and `dtype` (integers as they are), each the only one in its storage."""
    import torch

    wanted = getattr(torch, dtype)
    weights = {}
    for name, tensor in tensors:
        host = tensor.detach().to("cpu", wanted if tensor.is_floating_point() else tensor.dtype).contiguous()
        # safetensors refuses tensors that are parts of one storage, such as slices of a flat buffer.
        weights[name] = host if host.untyped_storage().nbytes() == host.nbytes else host.clone()
    return weights


def roomy_folder(folder: Path, nbytes: int) -> Path:
    """Shared memory if `nbytes` fit there, else the run's folder.

    Raises:
        ServerError: neither has room.
    """
    shared = private_folder(shared_folder(folder))
    if shared is not None and nbytes + MARGIN <= min(shutil.disk_usage(shared).free, free_memory()):
        return shared
    if nbytes + MARGIN <= (free := shutil.disk_usage(folder).free):
        return folder
    raise ServerError(
        f"no room for {nbytes / 1e9:.1f} GB of weights: {free / 1e9:.1f} GB are free in {folder}, "
        f"and {SHARED_MEMORY} has less (in a container its default is 64 MB)",
        hint=f"free some, move the run with --output-dir, or enlarge {SHARED_MEMORY} (docker run --shm-size)",
    )


def allowed_folders(folder: str | Path) -> str:
    """The value of POSTRL_WEIGHTS_DIR for the servers of a run whose weights go through `folder`."""
    return os.pathsep.join([str(shared_folder(folder)), str(Path(folder).absolute())])


def delete_all_but(folder: Path, kept: Collection[Path]) -> None:
    """Delete what was published through `folder` and is not needed any more."""
    for place in (folder, shared_folder(folder)):
        for old in place.glob(f"{PREFIX}*"):
            if old not in kept:
                delete(old)


def delete(path: Path) -> None:
    """A file, or an adapter's folder."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_weights(folder: str | Path) -> None:
    """Delete what a run left in shared memory and in `folder`, after its learner has ended."""
    delete_all_but(Path(folder), ())
    shutil.rmtree(shared_folder(folder), ignore_errors=True)
    (Path(folder) / POINTER).unlink(missing_ok=True)


def shared_folder(folder: str | Path) -> Path:
    """Where the run with this weights folder keeps its files in shared memory."""
    path = Path(folder).absolute()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    return SHARED_MEMORY / f"postrl-{path.parent.name}-{digest}"


def private_folder(path: Path) -> Path | None:
    """The folder, ours alone (mode 0700); None if there is no shared memory or someone else sits on the name.

    Anyone can make names in /dev/shm, so an existing one is used only if it is a real folder of this user.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    ours = path.is_dir() and not path.is_symlink() and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return path if ours else None


def free_memory() -> int:
    """Bytes of main memory that can still be taken: shared memory is promised more than there is."""
    import psutil

    return int(psutil.virtual_memory().available)


@contextmanager
def server_lock(folder: Path, server: VLLMServer, deadline_s: float) -> Iterator[None]:
    """One update of a server at a time, over all processes of the run.

    Raises:
        WaitTimeout: another process held it for `deadline_s` seconds.
    """
    path = server_file(folder, server.url, "lock")
    with path.open("a", encoding="utf-8") as file:
        if take_lock(file.fileno(), seconds=deadline_s) is False:
            raise WaitTimeout(f"another update of {server.url} held {path} for {deadline_s:g} s")
        yield
