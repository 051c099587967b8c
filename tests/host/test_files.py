"""What is written is there whole or not at all."""

from __future__ import annotations

import pytest

from postrl.host.files import whole_file, whole_folder, write_whole


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
