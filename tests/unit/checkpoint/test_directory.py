"""A checkpoint is complete or absent, and a file that was changed is refused."""

import hashlib
import io
import itertools
import json
import os
import pickle
import random
import shutil
import signal
import zipfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hocket.checkpoint import directory
from hocket.checkpoint.directory import (
    MANIFEST,
    Manifest,
    checkpoint_name,
    finish_checkpoint,
    keep_newest,
    newest_first,
    read_manifest,
    read_part,
    remove_unfinished,
    unfinished_path,
    write_file,
)
from hocket.checkpoint.serialize import pack
from hocket.errors import CheckpointError
from hocket.training.checkpoints.find_and_load import newest_common_checkpoint

STATE = {"weights": torch.arange(6.0).reshape(2, 3).T, "numbers": [1, 2.5, None, "a", (True,)]}
PARTS = ("stage0.pt", "stage1.pt")


def write_checkpoint(folder, tick=1, epoch=0):
    """Write a checkpoint of two parts into the directory of all checkpoints."""
    name = checkpoint_name(tick, epoch)
    unfinished = unfinished_path(folder, name)
    digests = {
        part: write_file(unfinished, part, pack(STATE | {"tick": tick}, part)) for part in PARTS
    }
    manifest = Manifest(
        tick=tick,
        stages=[["a"], ["b"]],
        replicas=1,
        setup={"method": "fdg"},
        versions={"torch": torch.__version__},
        threads=1,
        fit={"epoch": epoch, "loss": 1 / 3},
        parts=digests,
    )
    finish_checkpoint(folder, name, manifest)
    return folder / name, manifest


def read_checkpoint(checkpoint):
    manifest = read_manifest(checkpoint)
    return [read_part(checkpoint, part, manifest) for part in manifest.parts]


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    checkpoint, manifest = write_checkpoint(tmp_path)
    assert read_manifest(checkpoint) == manifest
    for state in read_checkpoint(checkpoint):
        assert torch.equal(state["weights"], STATE["weights"])
        assert state["weights"].stride() == STATE["weights"].stride()
        assert state["numbers"] == STATE["numbers"]
    assert not list(tmp_path.glob(".*"))
    # Tensors that share memory still do.
    value = torch.zeros(3)
    data = pack({"a": value, "b": [value[1:]]}, "it")
    value += 1  # the packed state does not change
    unpacked = directory.unpack(data, "it")
    assert unpacked["a"].tolist() == [0, 0, 0]
    unpacked["a"] += 1
    assert unpacked["b"][0].tolist() == [1, 1]


def test_newest_first_and_the_newest_stay(tmp_path):
    for tick, epoch in ((5, 0), (10, 0), (10, 1), (200, 3)):
        write_checkpoint(tmp_path, tick, epoch)
    (tmp_path / "something else").mkdir()
    assert keep_newest(tmp_path, 2, checkpoint_name(200, 3)) == []
    names = [checkpoint.name for checkpoint in newest_first(tmp_path)]
    assert names == [checkpoint_name(200, 3), checkpoint_name(10, 1)]
    assert newest_first(tmp_path / names[0]) == [tmp_path / names[0]]


def test_checkpoints_of_before_a_return_to_an_earlier_one_are_set_aside(tmp_path):
    for tick in (10, 20, 30, 12):
        write_checkpoint(tmp_path, tick)
    aside = keep_newest(tmp_path, 2, checkpoint_name(12, 0))
    assert [checkpoint.name for checkpoint in newest_first(tmp_path)] == [
        checkpoint_name(12, 0),
        checkpoint_name(10, 0),
    ]
    assert sorted(path.name for path in aside) == [
        f"aside-1-{checkpoint_name(tick, 0)}" for tick in (20, 30)
    ]
    assert all(len(read_checkpoint(path)) == 2 for path in aside)
    write_checkpoint(tmp_path, 20)
    (again,) = keep_newest(tmp_path, 2, checkpoint_name(12, 0))
    assert again.name == f"aside-2-{checkpoint_name(20, 0)}"


def test_an_unfinished_directory_is_no_checkpoint_and_is_removed(tmp_path):
    _, manifest = write_checkpoint(tmp_path)
    (tmp_path / ".tick-a-file.part").write_text("")
    (tmp_path / ".tick-a-link.part").symlink_to(tmp_path)
    write_file(unfinished_path(tmp_path, checkpoint_name(2, 0)), PARTS[0], b"half")
    assert [checkpoint.name for checkpoint in newest_first(tmp_path)] == [checkpoint_name(1, 0)]
    with pytest.raises(CheckpointError, match=r"is not visible in .* all processes share"):
        finish_checkpoint(tmp_path, checkpoint_name(2, 0), manifest)
    remove_unfinished(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [checkpoint_name(1, 0)]


def test_what_cannot_be_removed_stays_and_is_no_failure(tmp_path, monkeypatch):
    write_checkpoint(tmp_path)
    monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=PermissionError(13, "denied")))
    assert len(read_checkpoint(write_checkpoint(tmp_path)[0])) == 2  # instead of the first
    with pytest.warns(UserWarning, match=r"cannot remove the unfinished '.*\.part': denied"):
        remove_unfinished(tmp_path)


# Files that differ from those that were written.


@pytest.mark.parametrize("file", [*PARTS, MANIFEST])
def test_a_flipped_bit_and_a_truncation_are_refused(file, tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path)
    whole = (checkpoint / file).read_bytes()
    rng, damaged = random.Random(0), []
    for _ in range(100):
        damaged.append(bytearray(whole))
        damaged[-1][rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    sizes = [*range(0, len(whole), len(whole) // 20), len(whole) - 1]
    for bad in (*damaged, *(whole[:size] for size in sizes)):
        (checkpoint / file).write_bytes(bad)
        with pytest.raises(CheckpointError, match=file):
            read_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), "is damaged: its checksum"),
        (lambda whole: None, "stage0.pt': No such file"),
    ],
    ids=["damage", "missing"],
)
def test_what_became_of_a_file_is_told(change, said, tmp_path):
    checkpoint, manifest = write_checkpoint(tmp_path)
    content = change((checkpoint / PARTS[0]).read_bytes())
    (checkpoint / PARTS[0]).unlink()
    if content:
        (checkpoint / PARTS[0]).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"stage0\.pt.*{said}|{said}"):
        read_checkpoint(checkpoint)
    with pytest.raises(CheckpointError, match=r"has no part 'stage7.pt'"):
        read_part(checkpoint, "stage7.pt", manifest)
    write_checkpoint(tmp_path)  # one of the same name is replaced
    assert len(read_checkpoint(checkpoint)) == 2


@pytest.mark.parametrize("file", [PARTS[0], MANIFEST])
def test_links_pipes_and_folders_are_not_read(file, tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path)
    kept = (checkpoint / file).rename(tmp_path / "kept")
    (checkpoint / file).symlink_to(kept)
    with pytest.raises(CheckpointError, match=rf"cannot read .*{file}': it is a link"):
        read_checkpoint(checkpoint)
    (checkpoint / file).unlink()
    for make in (os.mkfifo, os.mkdir):
        make(checkpoint / file)
        with pytest.raises(CheckpointError, match=rf"{file}': it is not a regular file"):
            read_checkpoint(checkpoint)
        (checkpoint / file).rename(tmp_path / make.__name__)


@pytest.mark.parametrize(
    ("file", "message"),
    [(PARTS[0], "bytes and was written with"), (MANIFEST, "bytes: it is no manifest")],
)
def test_a_size_is_compared_before_the_file_is_read(file, message, tmp_path):
    checkpoint, _ = write_checkpoint(tmp_path)
    os.truncate(checkpoint / file, 2**43)  # sparse, and more than any memory
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(checkpoint)


GENUINE = asdict(Manifest(1, [["a"]], 1, {}, {"torch": "2"}, 1, {}, {}))
GENUINE["format"] = directory.FORMAT


def signed_manifest(values):
    """Serialize a manifest with a checksum that matches."""
    content = json.dumps(values)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return json.dumps({"sha256": digest, "content": content})


PART = {"size": 1, "sha256": ""}
PARTS_FORGED = (
    *(None, [], {"stage0.pt": {"size": 1}}, {"../stage0.pt": PART}, {"/stage0.pt": PART}),
    {"a\0b": PART},
)
CHANGED = [GENUINE | {"surprise": 1}, *(GENUINE | {"parts": parts} for parts in PARTS_FORGED)]
FOREIGN = ["", "null", "[]", "{}", '{"sha256": 1, "content": 2}', "[" * 100_000]


@pytest.mark.parametrize(
    "text",
    [*FOREIGN, *map(signed_manifest, ([], {}, {"format": directory.FORMAT}, *CHANGED))],
    ids=lambda text: text[-60:],
)
def test_a_foreign_or_forged_manifest_is_refused(text, tmp_path):
    (tmp_path / MANIFEST).write_text(signed_manifest(GENUINE))
    assert read_manifest(tmp_path).versions == {"torch": "2"}
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest.json' is not a checkpoint manifest"):
        read_manifest(tmp_path)


def test_another_format_is_refused_and_of_many_checkpoints_it_is_one_reason(tmp_path):
    for values, words in (
        ({"format": 99}, "another version of Hocket .*format 99"),
        ({"format": 1, "versions": {"hocket": "0.1"}}, r"another version of Hocket \(0\.1, "),
    ):
        (tmp_path / MANIFEST).write_text(signed_manifest(values))
        with pytest.raises(CheckpointError, match=words):
            read_manifest(tmp_path)
    for tick in range(3):
        folder = tmp_path / "many" / checkpoint_name(tick, 0)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_text(signed_manifest({"format": 99}))
    with pytest.raises(CheckpointError, match="cannot resume from") as refused:
        newest_common_checkpoint(tmp_path / "many", lambda manifest: (), lambda value: [value])
    assert str(refused.value).count("another version of Hocket") == 1


class Malicious:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize(
    "dump",
    [
        lambda harm, file: file.write_bytes(pickle.dumps(harm)),
        torch.save,
        lambda harm, file: torch.save({"weights": harm}, file),
    ],
    ids=["pickle", "torch", "state"],
)
def test_no_code_is_run(dump, tmp_path):
    """Refuse code even if a forger has updated the checksum."""
    checkpoint, manifest = write_checkpoint(tmp_path)
    mark = tmp_path / "harm"
    dump(Malicious(mark), checkpoint / PARTS[0])
    data = (checkpoint / PARTS[0]).read_bytes()
    digest = directory.FileDigest(len(data), hashlib.sha256(data).hexdigest())
    manifest.parts[PARTS[0]] = digest
    with pytest.raises(CheckpointError, match="holds no state") as caught:
        read_part(checkpoint, PARTS[0], manifest)
    assert "weights_only" not in str(caught.value)
    assert not mark.exists()


def grows(packed):
    """Compress the entries of an archive, which would grow when they are read."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(packed) as plain, zipfile.ZipFile(bomb, "w") as smaller:
        for entry in plain.infolist():
            smaller.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    assert len(bomb.getvalue()) < 10_000
    return bomb


def overlaps(packed):
    """List each entry of an archive twice."""
    with zipfile.ZipFile(packed, "a") as archive:
        archive.filelist.extend(list(archive.filelist))
        archive.comment = b"so that the directory is written again"
    return packed


@pytest.mark.parametrize("forge", [grows, overlaps])
def test_an_archive_of_a_forger_is_refused(forge):
    packed = io.BytesIO(pack({"weights": torch.zeros(100_000)}, "it"))
    with pytest.raises(CheckpointError, match=r"it holds no state .*\(BadZipFile\)"):
        directory.unpack(forge(packed).getvalue(), "it")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [object()]}, r"stage0.pt, a, 0 is a object, which a checkpoint cannot hold"),
        ({"a": Path("b")}, r"stage0.pt, a is a PosixPath"),
        ({(1, object()): 2}, r"a key of stage0.pt, 1 is a object"),
        ({"a": torch.nn.Linear(1, 1)}, r"stage0.pt, a is a Linear"),
        ({"lr": np.float32(1)}, r"stage0.pt, lr is a float32, .* Python's numbers \(float"),
    ],
)
def test_a_state_that_could_not_be_read_is_not_written(state, message):
    with pytest.raises(CheckpointError, match=message):
        pack(state, "stage0.pt")


def test_numbers_of_numpy_are_read_as_pythons():
    state = torch.nn.Linear(1, 1).state_dict()
    state |= {"a": (np.float64(0.1), [np.bool_(True)], Counter(np.arange(2)))}
    read = directory.unpack(pack(state, "it"), "it")
    assert repr(read["a"]) == "(0.1, [True], Counter({0: 1, 1: 1}))"
    assert read._metadata == state._metadata


# Processes that are killed in the middle of a save.


def save_and_die(folder, tick, at):
    """Save a checkpoint in this process, and kill it after `at` calls that reach the disk."""
    calls = itertools.count()

    def killing(original):
        def call(*args, **kwargs):
            if next(calls) >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return call

    try:
        reach_the_disk = (os, "fsync"), (os, "fdopen"), (Path, "rename"), (shutil, "rmtree")
        for module, name in reach_the_disk:
            setattr(module, name, killing(getattr(module, name)))
        write_checkpoint(folder, tick)
        keep_newest(folder, 1, checkpoint_name(tick, 0))
    finally:
        os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork")  # of threads; the child uses none of them
@pytest.mark.parametrize(
    ("tick", "at"), [*((2, at) for at in range(12)), *((1, at) for at in range(6, 13))]
)
def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(tick, at, tmp_path):
    """Kill a process at each call that reaches the disk; the last removes an old one.

    In tick 1 the checkpoint before has the same name.
    """
    write_checkpoint(tmp_path, 1)
    child = os.fork()
    if child == 0:
        save_and_die(tmp_path, tick, at)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    checkpoints = newest_first(tmp_path)
    assert checkpoints
    for checkpoint in checkpoints:
        assert len(read_checkpoint(checkpoint)) == 2
    remove_unfinished(tmp_path)
    assert newest_first(tmp_path) == checkpoints
