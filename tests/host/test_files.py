"""What is written is there whole or not at all."""

from __future__ import annotations

import errno
import os

import pytest

from postrl.host.files import take_lock, whole_file, whole_folder, write_whole


def test_a_file_has_its_name_only_when_all_of_it_is_written(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("before")
    with whole_file(target) as part:
        part.write_text("now")
        assert target.read_text() == "before"
    assert target.read_text() == "now" and [*tmp_path.iterdir()] == [target]


def test_a_file_whose_writing_fails_stays_what_it_was(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("before")
    with pytest.raises(ZeroDivisionError), whole_file(target) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "before" and [*tmp_path.iterdir()] == [target]


def test_text_that_utf_8_does_not_know_is_escaped(tmp_path):
    write_whole(tmp_path / "a.txt", "\ud800é")
    assert (tmp_path / "a.txt").read_bytes() == b"\\ud800" + "é".encode()


def test_a_folder_has_its_name_only_when_the_block_ends_well(tmp_path):
    target = tmp_path / "new" / "model"
    with whole_folder(target) as part:
        (part / "config.json").write_text("{}")
        assert not target.exists()
    assert [*target.iterdir()] == [target / "config.json"]
    assert target.stat().st_mode & 0o777 == target.parent.stat().st_mode & 0o777, "as a folder that anyone makes"
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "new" / "other"):
        raise ZeroDivisionError
    assert [*target.parent.iterdir()] == [target]


def test_a_lock_is_taken_refused_after_its_seconds_or_not_to_be_had_and_other_errors_are_not_swallowed(
    tmp_path, monkeypatch
):
    asked: list[str] = []
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert take_lock(first.fileno()) is True
        assert take_lock(second.fileno(), seconds=0.1, waiting=lambda: asked.append("waits")) is False
    assert asked == ["waits"]
    monkeypatch.setattr("fcntl.flock", raising(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        take_lock(0)
    monkeypatch.setattr("fcntl.flock", raising(errno.ENOLCK))
    assert take_lock(0) is None


def raising(number: int):
    def flock(file, how):
        raise OSError(number, os.strerror(number))

    return flock
