"""A replaced file has its old content or its new one; only regular files are read."""

import errno
import json
import os
from contextlib import nullcontext, suppress
from unittest.mock import Mock

import pytest

from hocket.files import (
    open_regular_file,
    read_json,
    replace_atomically,
    sync_path,
    write_text_atomically,
)


def test_the_old_content_is_there_until_the_end_and_after_an_error(tmp_path, monkeypatch):
    file = tmp_path / "file.txt"
    file.write_text("older")
    with replace_atomically(file) as unfinished:
        unfinished.write_text("old")
        assert file.read_text() == "older"
    assert file.read_text() == "old"
    with suppress(ZeroDivisionError), replace_atomically(file) as unfinished:
        unfinished.write_text("half")
        raise ZeroDivisionError
    assert file.read_text() == "old"

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim, file = tmp_path / "victim", tmp_path / "file.txt"
    victim.write_text("mine")
    (tmp_path / "file.txt.part").symlink_to(victim)
    write_text_atomically(file, "new")
    assert (victim.read_text(), file.read_text()) == ("mine", "new")
    assert not file.is_symlink()


def test_a_device_is_not_replaced(tmp_path):
    for path in (os.devnull, tmp_path):
        with pytest.raises(OSError, match="it is not a regular file"):
            write_text_atomically(type(tmp_path)(path), "new")


def test_a_link_is_opened_only_if_the_user_has_named_it(tmp_path):
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    with open_regular_file(tmp_path / "link", follow_links=True) as opened:
        assert opened.read() == b"content"
    with pytest.raises(OSError, match="it is a link"):
        open_regular_file(tmp_path / "link")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting"),
        ("[1, 2, 3]", "9 bytes, and at"),
    ],
)
def test_json_is_read_from_files_and_other_text_is_a_value_error(content, message, tmp_path):
    (tmp_path / "file").write_text(json.dumps({"a": [1]}))
    assert read_json(tmp_path / "file") == {"a": [1]}
    (tmp_path / "file").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "file", limit=8 if content == "[1, 2, 3]" else 10**6)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_json(tmp_path / "pipe")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_may_refuse_to_write_names_at_once(number, tmp_path, monkeypatch):
    """A refusal is none of the disk's failures, which are told, and so are those of files."""

    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").write_text("content")
    monkeypatch.setattr(os, "fsync", refuse)
    failure = pytest.raises(OSError, match=os.strerror(number))
    with failure if number == errno.EIO else nullcontext():
        sync_path(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        sync_path(tmp_path / "file")
