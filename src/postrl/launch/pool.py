"""The vLLM servers of a run: started together, watched, restarted where they fall, ended without leftovers.

One that falls too often is given up; only when the last one is lost does the run end with it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from postrl.errors import PostrlError, ServerError
from postrl.host.stopping import FROM_OUTSIDE
from postrl.launch import logs
from postrl.launch.failures import MEMORY
from postrl.launch.ports import LOOPBACK, HeldPort
from postrl.launch.process import ChildProcess, RestartBudget, describe_exit, stop_all
from postrl.servers.client import VLLMServer

Command = tuple[list[str], dict[str, str | None]]
LAST_LINES = "; the last lines of its log:\n"


@dataclass(frozen=True, slots=True)
class Fall:
    """A server that ended, froze or could not be brought back."""

    url: str
    why: str
    """One line, with the server's name."""
    given_up: bool
    """Whether it fell too often; else it is started again."""


@dataclass(eq=False)
class _Server:
    index: int
    port: HeldPort
    client: VLLMServer
    budget: RestartBudget
    process: ChildProcess = field(init=False)
    deadline: float = 0.0
    """When its start counts as failed."""
    ready: bool = False
    failing_since: float | None = None
    """First health probe that failed since the last good one."""
    tokens: int = -1
    """Read and generated when that was last looked at ..."""
    moved_at: float = 0.0
    """... and when the number last moved, or nothing was to be done."""
    lost: bool = False
    """Given up: it fell too often."""

    @property
    def name(self) -> str:
        return f"vLLM server {self.index}"


class ServerPool:
    """Servers that answer `GET /health` on a loopback port.

        with ServerPool(command, 2, log_dir=run / "logs") as pool:      # returns when all are healthy
            pool.watch_in_background(resync, tell)
            ... pool.urls ...
            pool.check()                                               # raises what the background watch met

    Args:
        command: (index, port) -> argv and environment changes of server `index`; called again at a restart.
        num_servers: how many to start.
        log_dir: folder of `vllm_0.log`, `vllm_1.log`, ...
        token: what the servers ask for, held here for their clients.
        port: the port the user named for the only server; None chooses free ones. They stay the same at a restart.
        start_timeout: seconds a server may take until it is healthy.
        frozen_after: seconds without a good answer from /health after which a server counts as frozen.
        probe_timeout: seconds /health has for an answer.
        max_restarts: restarts of one server within `restart_window` seconds; one that falls again is given up.
        grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Callable[[int, int], Command],
        num_servers: int,
        *,
        log_dir: str | Path,
        token: str = "",
        port: int | None = None,
        start_timeout: float = 900.0,
        frozen_after: float = 60.0,
        probe_timeout: float = 5.0,
        max_restarts: int = 3,
        restart_window: float = 1800.0,
        grace: float = 10.0,
    ) -> None:
        self.command, self.num_servers, self.log_dir, self.token = command, num_servers, Path(log_dir), token
        self.port, self.start_timeout = port, start_timeout
        self.frozen_after, self.probe_timeout = frozen_after, probe_timeout
        self.max_restarts, self.restart_window, self.grace = max_restarts, restart_window, grace
        self.servers: list[_Server] = []
        self.expects_falls: Callable[[], bool] = lambda: False
        """Whether what falls now is not started again: the run is about to end."""
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()
        self._launching = threading.Lock()  # nothing starts between stop() and its look at what runs
        self._error: BaseException | None = None

    @property
    def urls(self) -> list[str]:
        return [server.client.url for server in self.servers]

    @property
    def processes(self) -> list[ChildProcess]:
        return [server.process for server in self.servers]

    # -- start and stop ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all servers at once and returns when all are healthy.

        Raises:
            UsageError: the named port is in use.
            ServerError: one died or was not healthy in time; the message has the cause from its log. None is left.
        """
        try:
            for index in range(self.num_servers):
                port = HeldPort(self.port, named_by="--vllm-arg port")
                client = VLLMServer(f"http://{LOOPBACK}:{port.number}", token=self.token)
                self._launch(_Server(index, port, client, RestartBudget(self.max_restarts, self.restart_window)))
            while not all(server.ready for server in self.servers):
                for server in self.servers:
                    if not server.ready:
                        self._check_start(server)
                self._stopping.wait(0.2)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the watch and all servers, within one shared grace. May be called again, and while another thread
        is in `start` (which then raises ServerError)."""
        with self._launching:
            self._stopping.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(self.probe_timeout * (self.num_servers + 1) + self.grace)
        stop_all(self.processes, self.grace)
        for server in self.servers:
            server.port.release()
            server.client.close()

    def __enter__(self) -> ServerPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self, server: _Server) -> None:
        """Starts the process of a server, for the first time or again."""
        argv, env = self.command(server.index, server.port.number)
        with self._launching:
            if self._stopping.is_set():
                raise ServerError(f"{server.name} was not started: the pool has been stopped")
            log_path = self.log_dir / f"vllm_{server.index}.log"
            server.process = ChildProcess(server.name, argv, env=env, log_path=log_path, block=FROM_OUTSIDE)
            if server not in self.servers:
                self.servers.append(server)
        server.ready, server.failing_since = False, None
        server.deadline = time.monotonic() + self.start_timeout

    # -- watch ---------------------------------------------------------------------------------------------------

    def watch(
        self, on_restart: Callable[[str], None] | None = None, on_fall: Callable[[Fall], None] | None = None
    ) -> None:
        """One look at every server; call it about once a second. It does not wait for a restarted server.

        A server that died, or has been frozen for `frozen_after` seconds, is ended and started again on its port;
        once it is healthy, `on_restart(url)` is called: it holds the weights it was started with, not the last pushed.
        A PostrlError of `on_restart` is one more fall. Before anything is done about a fall, `on_fall` hears of it.

        Raises:
            ServerError: the last server has fallen more than `max_restarts` times.
        """
        for server in self.servers:
            if self._stopping.is_set():
                return
            if server.lost:
                continue
            try:
                self._look_at(server, on_restart)
            except PostrlError as error:
                self._after_fall(server, error, on_fall)

    def watch_in_background(
        self,
        on_restart: Callable[[str], None] | None = None,
        on_fall: Callable[[Fall], None] | None = None,
        *,
        interval: float = 1.0,
    ) -> None:
        """Calls `watch` every `interval` seconds in a thread, until `stop`. What it raises, `check` raises."""

        def loop() -> None:
            try:
                while not self._stopping.wait(interval):
                    self.watch(on_restart, on_fall)
            except BaseException as error:
                self._error = error

        self._watcher = threading.Thread(target=loop, name="server watch", daemon=True)
        self._watcher.start()

    def check(self) -> None:
        """Raises what the background watch raised, such as ServerError for a server that cannot be kept up."""
        if self._error is not None:
            raise self._error

    def _look_at(self, server: _Server, on_restart: Callable[[str], None] | None) -> None:
        if server.ready:
            self._check_running(server)
            return
        self._check_start(server)
        if server.ready and on_restart is not None:
            try:
                on_restart(server.client.url)
            except PostrlError as error:
                message = f"{server.name} was restarted and not brought back: {error.message}"
                raise ServerError(message, hint=error.hint) from error

    def _check_start(self, server: _Server) -> None:
        """Marks a starting server ready when it is healthy; raises ServerError when it died or is late."""
        if server.process.poll() is not None:
            raise _error(server, f"could not start ({describe_exit(server.process.poll())})")
        if server.client.health(self.probe_timeout):
            server.ready, server.failing_since, server.moved_at = True, None, time.monotonic()
        elif time.monotonic() > server.deadline:
            late = f"was not ready after {self.start_timeout:g} s"
            raise _error(server, late, advice="give it more time with --server-start-timeout; ")

    def _check_running(self, server: _Server) -> None:
        """Raises ServerError when a server that was ready died or is frozen."""
        if server.process.poll() is not None:
            raise _error(server, f"ended with {describe_exit(server.process.poll())}")
        if server.client.health(self.probe_timeout):
            server.failing_since = None
            self._check_moving(server)
            return
        # Counted from the first bad probe, not from the last good one: this process may have slept itself.
        now = time.monotonic()
        server.failing_since = server.failing_since or now
        if now - server.failing_since >= self.frozen_after:
            raise _error(server, f"has not answered /health for {self.frozen_after:g} s")

    def _check_moving(self, server: _Server) -> None:
        """Raises ServerError when requests run and no token comes: an engine can hang behind a front end that answers."""
        now = time.monotonic()
        if now < server.moved_at + self.frozen_after / 4:
            return
        try:
            metrics = server.client.metrics(self.probe_timeout)
            tokens = metrics.generation_tokens + metrics.prompt_tokens
            moving = tokens != server.tokens or not metrics.running or server.client.is_paused()
        except PostrlError:  # no numbers: /health has the say
            moving, tokens = True, server.tokens
        if moving:
            server.tokens, server.moved_at = tokens, now
        elif now - server.moved_at >= 2 * self.frozen_after:  # a long prompt is counted when all of it is read
            raise _error(server, f"has requests running, and no token came for {2 * self.frozen_after:g} s")

    def _after_fall(self, server: _Server, error: PostrlError, on_fall: Callable[[Fall], None] | None) -> None:
        """Starts a fallen server again, or gives it up; raises `error`, the reason, when it was the last."""
        server.lost = self.expects_falls() or not server.budget.spend()
        if on_fall is not None:
            on_fall(Fall(server.client.url, error.message.partition(LAST_LINES)[0], server.lost))
        server.process.stop(self.grace)
        if not server.lost:
            self._launch(server)
        elif all(other.lost for other in self.servers):
            alone = ", and no other server is left" if len(self.servers) > 1 else ""
            raise ServerError(f"{error.message}\n({server.budget}{alone})", hint=error.hint)


def _error(server: _Server, what: str, *, advice: str = "") -> ServerError:
    """An error that says what happened to a server and, from its log, why."""
    process = server.process
    killed = process.poll() == 128 + signal.SIGKILL  # what its engine then says in the log is no cause
    cause = "" if killed else logs.cause(process.log_path, start=process.log_start)
    lines = [f"    {line}" for line in process.log_tail()] or ["    (nothing)"]
    why = f": {cause}" if cause else LAST_LINES + "\n".join(lines)
    advice += MEMORY if killed else ""
    return ServerError(f"{server.name} {what}{why}", hint=f"{advice}the whole log is {process.log_path}")
