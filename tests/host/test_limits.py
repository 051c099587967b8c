"""A machine with a long TMPDIR, a home that cannot be written, or few open files."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SETTLE = """
import json, os, resource, socket, sys, tempfile
from postrl.host import limits
said = []
limits.settle(said.append, servers=int(sys.argv[1]))
where = os.path.join(tempfile.mkdtemp(prefix="postrl-"), "worker.sock")
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(where)
inner = "import multiprocessing.managers as m; s = m.SyncManager(); s.start(); s.shutdown()"
import subprocess
inner = subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True)
names = ("TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HOME")
print(json.dumps({"said": said, "real": os.path.realpath(os.path.dirname(where)), "inner": inner.stderr, "env": {n: os.environ.get(n) for n in names},
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "connections": limits.connections(int(sys.argv[1])), "tmp": tempfile.gettempdir()}))
"""


def settle(shell: str = "true", servers: int = 0, **env: str | None):
    """What `settle` did in a process of its own, started by a shell after `shell`."""
    merged = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    command = ["/bin/sh", "-c", f'{shell} && exec "$0" -c "$1" {servers}', sys.executable, SETTLE]
    done = subprocess.run(command, env=merged, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sockets_fit_into_a_long_tmpdir_and_files_still_lie_there(tmp_path):
    long = tmp_path / ("a" * 60) / ("ü" * 60)
    long.mkdir(parents=True)
    found = settle(TMPDIR=str(long))
    assert found["real"].startswith(str(long.resolve()))
    assert len(found["env"]["TMPDIR"]) < 64 and found["inner"] == ""
    assert not os.path.exists(os.path.dirname(found["env"]["TMPDIR"]))  # the link went with the process
    assert found["said"] == []


def test_a_tmpdir_that_is_not_there_is_named(tmp_path):
    found = settle(TMPDIR=str(tmp_path / "gone"))
    assert found["said"] == [f"TMPDIR is {tmp_path}/gone, which does not exist: temporary files go to {found['tmp']}"]
    assert found["env"]["TMPDIR"] == found["tmp"] != str(tmp_path / "gone")


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null/home"])
def test_caches_of_a_home_that_cannot_be_written_go_to_tmpdir(tmp_path, home):
    found = settle(HOME=home, TMPDIR=str(tmp_path), XDG_CACHE_HOME=None, HF_HOME=None)
    place = f"{tmp_path}/postrl-cache-{os.getuid()}"
    assert found["env"]["XDG_CACHE_HOME"] == place and os.path.isdir(place)
    assert found["said"] == [
        f"{home}/.cache cannot be written: caches go to {place}; set XDG_CACHE_HOME (or HOME) to keep them elsewhere"
    ]


def test_a_home_that_is_not_set_is_that_of_the_user(tmp_path):
    found = settle(HOME=None, TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert found["said"] == []


def test_open_files_are_raised_as_far_as_they_may_be_and_missed_by_number():
    raised = settle("ulimit -Sn 256", servers=1)
    assert (raised["said"], raised["connections"]) == ([], 512) and raised["files"] > 704
    few = settle("ulimit -Sn 256 && ulimit -Hn 400", servers=2)
    assert (few["files"], few["connections"]) == (400, 104)
    assert few["said"] == [
        "at most 400 files may be open here (ulimit -Hn): each of 2 server(s) gets 104 requests at a time instead of 512; "
        "1216 files would do"
    ]


def test_settings_that_are_fine_are_left_alone(tmp_path):
    (tmp_path / "home").mkdir()
    found = settle(HOME=str(tmp_path / "home"), TMPDIR="/tmp", XDG_CACHE_HOME=None, HF_HOME=None)
    assert found["said"] == []
    assert found["env"] == {"TMPDIR": "/tmp", "XDG_CACHE_HOME": None, "HF_HOME": None, "HOME": str(tmp_path / "home")}
