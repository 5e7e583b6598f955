"""A file that is replaced atomically has its old content or its new one."""

import errno
import os

import pytest

from hocket.atomic import replace_atomically, write_text_atomically


def test_the_new_content_replaces_the_old_one(tmp_path):
    file = tmp_path / "file.txt"
    for text in ("old", "new, ä"):
        write_text_atomically(file, text)
        assert file.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [file]


def test_the_old_content_is_there_until_the_end(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")
    with replace_atomically(file) as unfinished:
        unfinished.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"


def test_an_error_leaves_the_old_content_and_no_other_file(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")

    def write_half():
        with replace_atomically(file) as unfinished:
            unfinished.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_the_old_content(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "file.txt"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_text_atomically(tmp_path / "none" / "file.txt", "text")
