"""A pool of real processes that serve /health, in place of vLLM."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from postrl.errors import ServerError, UsageError, WaitTimeout
from postrl.launch.pool import Command, Fall, ServerPool

from .support import PATIENCE, lives, python, wait_for

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(os.environ.get("ANSWER", "200")))
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *args): pass
print("serving", sys.argv[1:], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUCK = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        paused = b'{"is_paused": %s}' % sys.argv[2].encode()
        running = b"vllm:num_requests_running 3\\nvllm:generation_tokens_total 70\\nvllm:prompt_tokens_total 20\\n"
        self.wfile.write({"/is_paused": paused, "/metrics": running}.get(self.path, b""))
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""Answers /health, and its engine does nothing any more."""
CRASH = "print('loading'); raise ValueError('no such model')"


def serves(index: int, port: int) -> Command:
    return python(SERVER, port), {}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[..., ServerPool]]:
    """Makes pools that are stopped with the test."""
    made: list[ServerPool] = []

    def make(command: Callable[[int, int], Command] = serves, num_servers: int = 1, **options: Any) -> ServerPool:
        options = {"grace": 0.5, "start_timeout": PATIENCE, **options}
        made.append(ServerPool(command, num_servers, log_dir=tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def pid_at(url: str) -> int | None:
    try:
        return int(httpx.get(f"{url}/health", timeout=1.0, trust_env=False).text)
    except (httpx.HTTPError, ValueError):
        return None


def watch_until_restarted(pool: ServerPool) -> list[str]:
    """Watches until servers are healthy again; returns the urls given to on_restart."""
    urls: list[str] = []

    def restarted() -> list[str]:
        pool.watch(urls.append)
        return urls

    wait_for("a restart", restarted)
    return urls


def fell(pool: ServerPool, index: int) -> None:
    """Kills a server and waits until that is seen."""
    pid = pool.processes[index].main_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for("the reaper to notice", lambda: pool.processes[index].poll() is not None)


def test_all_servers_answer_when_start_returns_and_none_lives_after_stop(pool: Any) -> None:
    with pool(num_servers=2) as servers:
        pids = [pid_at(url) for url in servers.urls]
        assert len(set(pids)) == 2
        assert None not in pids
    assert not any(lives(pid) for pid in pids)
    assert [pid_at(url) for url in servers.urls] == [None, None]


def test_a_killed_server_is_started_again_at_the_same_url(pool: Any) -> None:
    servers = pool(num_servers=2)
    servers.start()
    urls, pids = list(servers.urls), [pid_at(url) for url in servers.urls]
    fell(servers, 1)
    assert watch_until_restarted(servers) == [urls[1]]
    assert servers.urls == urls
    assert pid_at(urls[0]) == pids[0]
    assert pid_at(urls[1]) not in (None, pids[1])


def test_a_frozen_server_is_killed_and_started_again(pool: Any) -> None:
    servers = pool(frozen_after=0.5, probe_timeout=0.5)
    servers.start()
    frozen = servers.processes[0].main_pid
    os.kill(frozen, signal.SIGSTOP)
    assert watch_until_restarted(servers) == servers.urls
    assert not lives(frozen)
    assert pid_at(servers.urls[0]) not in (None, frozen)


def test_one_missed_answer_is_no_frozen_server(pool: Any) -> None:
    servers = pool(probe_timeout=0.3)
    servers.start()
    pid = pid_at(servers.urls[0])
    os.kill(pid, signal.SIGSTOP)
    servers.watch()
    os.kill(pid, signal.SIGCONT)
    servers.probe_timeout = PATIENCE
    servers.watch()
    assert servers.servers[0].failing_since is None
    assert pid_at(servers.urls[0]) == pid


def test_a_server_that_cannot_start_gives_its_cause_and_the_others_are_ended(pool: Any) -> None:
    servers = pool(lambda index, port: serves(index, port) if index == 0 else (python(CRASH), {}), 2)
    with pytest.raises(ServerError) as error:
        servers.start()
    assert "vLLM server 1 could not start (exit code 1): ValueError: no such model" in error.value.message
    assert "vllm_1.log" in error.value.hint
    assert not lives(servers.processes[0].pid)


def test_a_server_that_says_nothing_about_its_cause_shows_its_last_lines(pool: Any) -> None:
    with pytest.raises(ServerError, match=r"exit code 3.*last lines of its log:\n    I give up"):
        pool(lambda *_: (python("import sys; print('I give up'); sys.exit(3)"), {})).start()


def test_a_server_that_never_gets_ready_names_the_deadline_and_the_setting(pool: Any) -> None:
    servers = pool(lambda index, port: (python(SERVER, port), {"ANSWER": "503"}), start_timeout=5.0)
    with pytest.raises(ServerError, match="was not ready after 5 s; the last lines of its log:\n    serving") as error:
        servers.start()
    assert "--server-start-timeout" in error.value.hint
    assert not lives(servers.processes[0].pid)


def test_one_server_of_two_that_keeps_falling_is_given_up_and_the_other_goes_on(pool: Any) -> None:
    servers = pool(num_servers=2, max_restarts=0)
    servers.start()
    left = pid_at(servers.urls[0])
    falls: list[Fall] = []
    fell(servers, 1)
    servers.watch(on_fall=falls.append)
    servers.watch(on_fall=falls.append)
    assert falls == [Fall(servers.urls[1], "vLLM server 1 ended with exit code 137 (SIGKILL)", given_up=True)]
    assert pid_at(servers.urls[0]) == left
    assert not lives(servers.processes[1].pid)
    fell(servers, 0)
    with pytest.raises(
        ServerError, match=r"(?s)vLLM server 0 ended .*\(restarted 0 .*no other server is left"
    ) as error:
        servers.watch(on_fall=falls.append)
    assert "ran out of memory" in error.value.hint
    assert [fall.given_up for fall in falls] == [True, True]


def test_a_fall_is_told_before_the_server_is_started_again(pool: Any) -> None:
    servers = pool()
    servers.start()
    falls: list[Fall] = []
    fell(servers, 0)
    servers.watch(on_fall=falls.append)
    assert [(fall.url, fall.given_up) for fall in falls] == [(servers.urls[0], False)]
    assert watch_until_restarted(servers) == servers.urls


def test_a_server_that_could_not_be_brought_back_is_started_once_more(pool: Any) -> None:
    servers = pool()
    servers.start()
    falls: list[str] = []
    tries: list[str] = []

    def bring_back(url: str) -> None:
        tries.append(url)
        if len(tries) == 1:
            raise WaitTimeout("another update held the lock", hint="look")

    def brought_back() -> bool:
        servers.watch(bring_back, lambda fall: falls.append(fall.why))
        return len(tries) == 2

    fell(servers, 0)
    wait_for("the second try", brought_back)
    assert falls[1:] == ["vLLM server 0 was restarted and not brought back: another update held the lock"]


def test_a_server_that_keeps_falling_stops_the_run_with_its_cause(pool: Any) -> None:
    starts = iter([serves, *[lambda *_: (python(CRASH), {})] * 9])
    servers = pool(lambda *args: next(starts)(*args), max_restarts=2)
    servers.start()
    os.kill(servers.processes[0].main_pid, signal.SIGKILL)

    def watch() -> None:
        wait_for("the end of the server", lambda: servers.processes[0].poll() is not None)
        servers.watch()

    watch()
    watch()
    with pytest.raises(ServerError, match=r"ValueError: no such model\n\(restarted 2 times"):
        watch()


def test_restarts_of_long_ago_do_not_count(pool: Any) -> None:
    servers = pool(max_restarts=1, restart_window=0.2)
    servers.start()
    for _ in range(2):
        fell(servers, 0)
        assert watch_until_restarted(servers) == servers.urls
        time.sleep(0.25)


def test_the_background_watch_restarts_servers_and_passes_errors_on(pool: Any) -> None:
    servers = pool(max_restarts=1)
    servers.start()
    urls: list[str] = []
    servers.watch_in_background(urls.append, interval=0.05)
    os.kill(servers.processes[0].main_pid, signal.SIGKILL)
    wait_for("a restart", lambda: urls)
    servers.check()
    os.kill(servers.processes[0].main_pid, signal.SIGKILL)

    def fails() -> bool:
        try:
            servers.check()
        except ServerError:
            return True
        return False

    wait_for("the error", fails)


def test_a_named_port_is_used(pool: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers = pool(port=port)
    servers.start()
    assert servers.urls == [f"http://127.0.0.1:{port}"]
    assert pid_at(servers.urls[0]) is not None


def test_a_named_port_in_use_is_refused_before_anything_starts(pool: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        servers = pool(port=other.getsockname()[1])
        with pytest.raises(UsageError, match=r"--vllm-arg port\) is in use by another program"):
            servers.start()
    assert servers.processes == []


def test_a_server_is_ended_when_the_pool_is_interrupted_while_it_starts(pool: Any, monkeypatch: Any) -> None:
    servers = pool(lambda index, port: (python("import time; time.sleep(600)"), {}))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(servers, "_check_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        servers.start()
    assert not lives(servers.processes[0].pid)


def test_a_pool_that_is_stopped_while_another_thread_starts_it_leaves_nothing(pool: Any) -> None:
    servers = pool(lambda index, port: (python("import time; time.sleep(600)"), {}), 2)
    failed: list[str] = []

    def start() -> None:
        try:
            servers.start()
        except ServerError as error:
            failed.append(error.message)

    thread = threading.Thread(target=start)
    thread.start()
    wait_for("the first process", lambda: servers.processes)
    servers.stop()
    thread.join(PATIENCE)
    assert failed
    assert not any(lives(process.pid) for process in servers.processes)


def test_a_server_whose_engine_hangs_behind_a_front_end_that_answers_is_restarted(pool):
    falls: list[Fall] = []
    stuck = pool(lambda index, port: (python(STUCK, port, "false"), {}), frozen_after=0.4)
    stuck.start()
    wait_for("the fall to be noticed", lambda: (stuck.watch(on_fall=falls.append), falls)[1])
    assert "has requests running, and no token came for 0.8 s" in falls[0].why


def test_a_server_that_is_paused_is_not_taken_for_one_that_hangs(pool):
    falls: list[Fall] = []
    paused = pool(lambda index, port: (python(STUCK, port, "true"), {}), frozen_after=0.2)
    paused.start()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        paused.watch(on_fall=falls.append)
        time.sleep(0.05)
    assert falls == []
