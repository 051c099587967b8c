"""The disk transport beside the model: files, room, locks, and servers that break on the way."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_vllm import FakeVLLM
from postrl.errors import ServerError, WaitTimeout
from postrl.run.connections import Connections
from postrl.servers.client import VLLMServer
from postrl.servers.lost import give_up, run_servers
from postrl.weights import disk
from postrl.weights.disk import DiskTransport, server_lock, shared_folder
from postrl.weights.transports import restore

WEIGHTS = {"embed": torch.arange(6.0).view(2, 3), "steps": torch.arange(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run" / "weights"
    yield path
    disk.remove_weights(path)


def push(servers: list[FakeVLLM], folder: Path, version: int, **settings: Any) -> DiskTransport:
    transport = DiskTransport([VLLMServer(fake.url) for fake in servers], folder, "bfloat16", **settings)
    transport.push(WEIGHTS.items(), version)
    return transport


def latest(folder: Path) -> Path:
    return Path(json.loads((folder / "latest.json").read_text())["path"])


def test_a_push_pauses_loads_names_the_version_and_resumes(folder: Path) -> None:
    with FakeVLLM() as fake:
        push([fake], folder, 3)
        (body,) = [body for route, body in fake.calls if route == "/update_weights"]
    assert [route for route in fake.routes if route != "/health"] == [
        "/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume", "/weight_info",
    ]  # fmt: skip
    assert fake.version == "3" and body == {"update_info": {"path": str(latest(folder))}}


def test_the_file_has_the_servers_dtype_and_nobody_else_may_read_it(folder: Path) -> None:
    from safetensors.torch import load_file

    push([], folder, 0)
    loaded = load_file(latest(folder))
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {"embed": torch.bfloat16, "steps": torch.int64}
    assert torch.equal(loaded["embed"].float(), WEIGHTS["embed"])
    assert stat.S_IMODE(latest(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(shared_folder(folder).stat().st_mode) == 0o700


def test_slices_of_one_buffer_can_be_pushed(folder: Path) -> None:
    flat = torch.arange(10.0)
    DiskTransport([], folder, "float32").push([("a", flat[:4]), ("b", flat[4:])], 0)
    from safetensors.torch import load_file

    assert load_file(latest(folder))["b"].tolist() == [4, 5, 6, 7, 8, 9]


def test_each_push_is_a_new_file_and_old_ones_are_deleted(folder: Path) -> None:
    paths = set()
    for _ in range(3):
        push([], folder, 1)
        paths.add(latest(folder))
        assert [*folder.glob("weights-*"), *shared_folder(folder).glob("*")] == [latest(folder)]
    assert len(paths) == 3


def test_without_room_in_shared_memory_the_run_folder_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_memory", lambda: 0)
    push([], folder, 0)
    assert latest(folder).parent == folder


def test_without_room_anywhere_it_says_so_before_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MARGIN", 1 << 60)
    with pytest.raises(ServerError, match=r"no room for 0\.0 GB") as caught:
        push([], folder, 0)
    assert "--shm-size" in caught.value.hint and not list(folder.glob("weights-*"))


def test_a_folder_that_someone_else_prepared_is_not_used(folder: Path, tmp_path: Path) -> None:
    """Anyone may make names in /dev/shm; a link, or a folder that others can write to, is a trap."""
    shared_folder(folder).symlink_to(tmp_path)
    try:
        push([], folder, 0)
        assert latest(folder).parent == folder
    finally:
        shared_folder(folder).unlink()
    shared_folder(folder).mkdir()
    shared_folder(folder).chmod(0o777)
    push([], folder, 1)
    assert latest(folder).parent == folder


def test_an_update_that_fails_names_the_server_and_leaves_it_paused(folder: Path) -> None:
    with FakeVLLM() as good, FakeVLLM() as bad:
        bad.answers["/update_weights"] = 500, "out of memory"
        with pytest.raises(
            ServerError, match=f"{bad.url} failed in the middle .* version 5: .*out of memory"
        ) as caught:
            push([good, bad], folder, 5)
        assert "restarted" in caught.value.hint
        assert (good.version, good.paused) == ("5", False)
        assert (bad.version, bad.paused) == ("default", True)


def test_a_server_that_cannot_begin_is_resumed(folder: Path) -> None:
    with FakeVLLM() as fake:
        fake.answers["/start_weight_update"] = 500, "weight transfer is off"
        with pytest.raises(ServerError, match="weight transfer is off"):
            push([fake], folder, 5)
        assert not fake.paused and "/update_weights" not in fake.routes


def test_an_update_that_a_killed_learner_left_open_is_ended_first(folder: Path) -> None:
    with FakeVLLM() as fake:
        fake.paused = fake.updating = True
        push([fake], folder, 5)
        assert (fake.version, fake.paused, fake.updating) == ("5", False, False)


def test_a_server_with_another_version_after_the_push_is_an_error(folder: Path) -> None:
    with FakeVLLM() as fake:
        fake.answers["/weight_info"] = 200, '{"weight_version": "9"}'
        with pytest.raises(ServerError, match="says weight version 9 after a push of 5"):
            push([fake], folder, 5)


def test_a_server_that_is_down_is_waited_for(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = VLLMServer(f"http://127.0.0.1:{port}")
    thread = threading.Thread(target=lambda: DiskTransport([server], folder, "float32").push(WEIGHTS.items(), 2))
    thread.start()
    time.sleep(0.5)
    with FakeVLLM(port) as fake:
        thread.join(30)
        assert fake.version == "2"
    with pytest.raises(WaitTimeout, match=f"{server.url}/health"):
        DiskTransport([server], folder, "float32", server_deadline=0.3).push(WEIGHTS.items(), 3)


def test_a_server_that_dies_during_the_push_gets_the_weights_when_it_is_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_down, looks = threading.Event(), VLLMServer.health

    def health(self: VLLMServer, *args: float) -> bool:
        if not (well := looks(self, *args)):
            seen_down.set()
        return well

    monkeypatch.setattr(VLLMServer, "health", health)
    dying = FakeVLLM()
    port = int(dying.url.rsplit(":", 1)[1])
    with dying:
        dying.delays["/update_weights"] = 30.0
        server = VLLMServer(dying.url)
        transport = DiskTransport([server], folder, "float32", push_timeout=0.5)
        thread = threading.Thread(target=lambda: transport.push(WEIGHTS.items(), 2))
        thread.start()
        while "/update_weights" not in dying.routes:
            time.sleep(0.02)
    assert seen_down.wait(60)
    with FakeVLLM(port) as fresh:
        thread.join(60)
        assert fresh.version == "2" and not fresh.paused


def clients(folder: Path, *urls: str) -> list[VLLMServer]:
    """Clients of servers that the run may give up."""
    return run_servers(Connections(server_urls=urls), folder)


def test_a_push_stops_waiting_for_a_server_that_is_given_up(folder: Path) -> None:
    with FakeVLLM() as fake:
        down, up = clients(folder, "http://127.0.0.1:9", fake.url)
        transport = DiskTransport([down, up], folder, "float32")
        thread = threading.Thread(target=lambda: transport.push(WEIGHTS.items(), 2), daemon=True)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()
        give_up(folder, down.url, "it fell four times")
        thread.join(30)
        assert not thread.is_alive() and fake.version == "2"
        transport.push(WEIGHTS.items(), 3)  # and from then on nobody asks for it
        assert fake.version == "3"


def test_a_server_that_is_given_up_in_the_middle_of_its_update_is_no_error(folder: Path) -> None:
    class Burning(FakeVLLM):
        def answer(self, route: str, body: Any) -> tuple[int, str]:
            if route != "/update_weights":
                return super().answer(route, body)
            give_up(folder, self.url, "it burned")
            return 500, "out of memory"

    with FakeVLLM() as good, Burning() as bad:
        servers = clients(folder, good.url, bad.url)
        DiskTransport(servers, folder, "float32").push(WEIGHTS.items(), 2)
        assert good.version == "2"


def test_a_push_without_any_server_left_says_why(folder: Path) -> None:
    (down,) = clients(folder, "http://127.0.0.1:9")
    give_up(folder, down.url, "it fell four times")
    with pytest.raises(ServerError, match=r"no vLLM server is left:\n  it fell four times"):
        DiskTransport([down], folder, "float32").push(WEIGHTS.items(), 2)


def test_restore_loads_what_was_published_last_and_nothing_before(folder: Path) -> None:
    with FakeVLLM() as fake:
        server = VLLMServer(fake.url)
        assert restore(server, folder) is None and not fake.routes
        push([], folder, 4)
        assert restore(server, folder) == 4
        assert fake.version == "4" and not fake.paused


HOLD = """
import sys, time
from pathlib import Path
from typing import Any
from postrl.servers.client import VLLMServer
from postrl.weights.disk import server_lock
with server_lock(Path(sys.argv[1]), VLLMServer(sys.argv[2]), 5):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_push_waits_for_a_restore_of_another_process_and_not_longer_than_its_deadline(folder: Path) -> None:
    folder.mkdir(parents=True)
    with FakeVLLM() as fake:
        command = [sys.executable, "-c", HOLD, str(folder), fake.url]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(WaitTimeout, match=f"another update of {fake.url}"):
            push([fake], folder, 1, server_deadline=0.3)
        assert "/pause" not in fake.routes
        holder.kill()  # the lock of a dead process is free
        holder.wait()
        with server_lock(folder, VLLMServer(fake.url), 5):
            pass


def test_closing_leaves_nothing_behind(folder: Path) -> None:
    push([], folder, 0).close()
    assert not shared_folder(folder).exists() and not list(folder.glob("weights-*"))
    assert restore(VLLMServer("http://127.0.0.1:9"), folder) is None
