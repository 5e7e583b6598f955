"""A checkpoint is whole or not there, and whatever is not what was written is refused."""

import errno
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hocket.checkpoint import directory as folders
from hocket.checkpoint.directory import (
    MANIFEST,
    Manifest,
    checkpoint_name,
    keep_newest,
    newest_first,
    read_manifest,
    read_part,
    remove_unfinished,
    seal,
    unfinished_path,
    write_file,
)
from hocket.checkpoint.serialize import pack
from hocket.errors import CheckpointError

STATE = {"weights": torch.arange(6.0).reshape(2, 3).T, "numbers": [1, 2.5, None, "a", (True,)]}
PARTS = ("stage0.pt", "stage1.pt")


def left(place, tick=1, epoch=0):
    """A checkpoint of two parts."""
    name = checkpoint_name(tick, epoch)
    seals = {
        part: write_file(unfinished_path(place, name), part, pack(STATE | {"tick": tick}, part))
        for part in PARTS
    }
    manifest = Manifest(
        tick=tick,
        stages=[["a"], ["b"]],
        replicas=1,
        setup={"method": "fdg"},
        versions={"torch": torch.__version__},
        threads=1,
        course={"epoch": epoch, "loss": 1 / 3},
        parts=seals,
    )
    return seal(place, name, manifest), manifest


def opened(place):
    manifest = read_manifest(place)
    return [read_part(place, part, manifest) for part in manifest.parts]


def test_what_is_read_is_what_was_written(tmp_path):
    place, manifest = left(tmp_path)
    assert read_manifest(place) == manifest
    for state in opened(place):
        assert torch.equal(state["weights"], STATE["weights"])
        assert state["weights"].stride() == STATE["weights"].stride()
        assert state["numbers"] == STATE["numbers"]
    assert not list(tmp_path.glob(".*"))


def test_tensors_that_share_memory_still_do(tmp_path):
    value = torch.zeros(3)
    data = pack({"a": value, "b": [value[1:]]}, "it")
    value += 1  # what is packed stays as it was
    found = folders.unpack(data, "it")
    assert found["a"].tolist() == [0, 0, 0]
    found["a"] += 1
    assert found["b"][0].tolist() == [1, 1]


def test_newest_first_and_the_newest_stay(tmp_path):
    for tick, epoch in ((5, 0), (10, 0), (10, 1), (200, 3)):
        left(tmp_path, tick, epoch)
    (tmp_path / "something else").mkdir()
    keep_newest(tmp_path, 2)
    names = [place.name for place in newest_first(tmp_path)]
    assert names == [checkpoint_name(200, 3), checkpoint_name(10, 1)]
    assert newest_first(tmp_path / names[0]) == [tmp_path / names[0]]
    assert newest_first(tmp_path / "nowhere") == []


def test_one_of_the_same_name_is_replaced(tmp_path):
    place, _ = left(tmp_path)
    (place / PARTS[0]).write_bytes(b"damaged")
    left(tmp_path)
    assert len(opened(place)) == 2


def test_what_was_never_finished_is_no_checkpoint_and_is_swept(tmp_path):
    left(tmp_path)
    write_file(unfinished_path(tmp_path, checkpoint_name(2, 0)), PARTS[0], b"half")
    assert [place.name for place in newest_first(tmp_path)] == [checkpoint_name(1, 0)]
    remove_unfinished(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [checkpoint_name(1, 0)]


def test_a_part_that_is_not_to_be_seen_is_refused(tmp_path):
    _, manifest = left(tmp_path)
    write_file(unfinished_path(tmp_path, checkpoint_name(2, 0)), PARTS[0], b"")
    with pytest.raises(CheckpointError, match=r"is not to be seen in .* all processes share"):
        seal(tmp_path, checkpoint_name(2, 0), manifest)


# Every way in which files can be others than those that were written.


@pytest.mark.parametrize("file", [*PARTS, MANIFEST])
def test_no_flipped_bit_is_read(file, tmp_path):
    place, _ = left(tmp_path)
    whole = (place / file).read_bytes()
    chance = random.Random(0)
    for _ in range(100):
        bad = bytearray(whole)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        (place / file).write_bytes(bad)
        with pytest.raises(CheckpointError, match=file):
            opened(place)


@pytest.mark.parametrize("file", [*PARTS, MANIFEST])
def test_nothing_that_was_cut_short_is_read(file, tmp_path):
    place, _ = left(tmp_path)
    whole = (place / file).read_bytes()
    for size in [*range(0, len(whole), len(whole) // 20), len(whole) - 1]:
        (place / file).write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=file):
            opened(place)


def test_a_file_of_another_length_is_told_from_a_damaged_one(tmp_path):
    place, manifest = left(tmp_path)
    whole = (place / PARTS[0]).read_bytes()
    (place / PARTS[0]).write_bytes(whole + b"more")
    with pytest.raises(CheckpointError, match=r"stage0.pt' has \d+ bytes and was written with"):
        opened(place)
    (place / PARTS[0]).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(
        CheckpointError, match=r"stage0.pt' is damaged: its checksum is another"
    ):
        opened(place)
    (place / PARTS[0]).unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*stage0.pt': No such file"):
        opened(place)
    with pytest.raises(CheckpointError, match=r"has no part 'stage7.pt'"):
        read_part(place, "stage7.pt", manifest)


@pytest.mark.parametrize("foreign", ["", "null", "[]", "{}", '{"sha256": 1, "content": 2}'])
def test_a_foreign_manifest_is_refused(foreign, tmp_path):
    (tmp_path / MANIFEST).write_text(foreign)
    with pytest.raises(CheckpointError, match=r"manifest.json' is no manifest of a checkpoint"):
        read_manifest(tmp_path)


def sealed(values):
    content = json.dumps(values)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return json.dumps({"sha256": digest, "content": content})


@pytest.mark.parametrize(
    "values",
    [
        [],
        {},
        {"format": folders.FORMAT},
        {"format": folders.FORMAT, "parts": []},
        {"format": folders.FORMAT, "parts": {"stage0.pt": {"size": 1}}},
        {"format": folders.FORMAT, "parts": {"../stage0.pt": {"size": 1, "sha256": ""}}},
        {"format": folders.FORMAT, "parts": {"/stage0.pt": {"size": 1, "sha256": ""}}},
        {"format": folders.FORMAT, "parts": {}, "surprise": 1},
    ],
    ids=str,
)
def test_a_manifest_of_a_forger_is_refused(values, tmp_path):
    (tmp_path / MANIFEST).write_text(sealed(values))
    with pytest.raises(CheckpointError, match=r"manifest.json' is no manifest of a checkpoint"):
        read_manifest(tmp_path)


def test_a_manifest_without_an_end_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"manifest.json' is no manifest of a checkpoint"):
        read_manifest(tmp_path)


def test_another_format_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text(sealed({"format": 99}))
    with pytest.raises(CheckpointError, match="was written by another version of Hocket"):
        read_manifest(tmp_path)


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "state"])
def test_no_code_is_run(kind, tmp_path):
    """Also where a forger has sealed the file anew."""
    place, manifest = left(tmp_path)
    mark = tmp_path / "harm"
    if kind == "pickle":
        (place / PARTS[0]).write_bytes(pickle.dumps(Harm(mark)))
    else:
        torch.save({"weights": Harm(mark)} if kind == "state" else Harm(mark), place / PARTS[0])
    data = (place / PARTS[0]).read_bytes()
    seal = folders.Seal(len(data), hashlib.sha256(data).hexdigest())
    manifest.parts[PARTS[0]] = seal
    with pytest.raises(
        CheckpointError, match=r"stage0.pt' holds no state .* was run"
    ) as caught:
        read_part(place, PARTS[0], manifest)
    assert "weights_only" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [object()]}, r"stage0.pt, a, 0 is a object, which a checkpoint cannot hold"),
        ({"a": Path("b")}, r"stage0.pt, a is a PosixPath"),
        ({(1, object()): 2}, r"a key of stage0.pt, 1 is a object"),
        ({"a": torch.nn.Linear(1, 1)}, r"stage0.pt, a is a Linear"),
    ],
)
def test_what_could_not_be_read_is_not_written(state, words):
    with pytest.raises(CheckpointError, match=words):
        pack(state, "stage0.pt")


# Ends in the middle of a save.

STEPS = ["open", "fsync", "rename", "rmtree"]


@pytest.mark.parametrize("at", range(9))
def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(at, tmp_path):
    """At each call that reaches the disk, the last of which is in the removal of an old one."""
    left(tmp_path, 1)
    program = f"""
import os, shutil, signal, sys
sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path]!r}
import torch
from pathlib import Path
from unit.checkpoint import test_directory as here
calls = 0
def killing(own):
    def call(*words, **more):
        global calls
        calls += 1
        if calls > {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        return own(*words, **more)
    return call
for module, name in ((os, "fsync"), (Path, "rename"), (Path, "open"), (shutil, "rmtree")):
    setattr(module, name, killing(getattr(module, name)))
here.left(Path({str(tmp_path)!r}), 2)
here.retain(Path({str(tmp_path)!r}), 1)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    found = newest_first(tmp_path)
    assert found
    for place in found:
        assert len(opened(place)) == 2
    remove_unfinished(tmp_path)
    assert newest_first(tmp_path) == found


def test_a_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path, PARTS[0], b"data")
