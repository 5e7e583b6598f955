"""Checkpoints during a training: when they are written, how many, and what a failure does."""

import errno
import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import HashStore
from torch.utils.data import DataLoader, TensorDataset

from contract.small import WatchedBatches, data, different, mlp, stepped, values_of
from hocket import Checkpoints
from hocket.checkpoint import writer
from hocket.checkpoint.directory import Manifest, checkpoint_name, claim_folder, newest_first
from hocket.distributed.failures import phases
from hocket.distributed.world.flags import StoreFlags
from hocket.errors import CheckpointError, HangError, HocketError, OptionError
from unit.training.test_resume import trainer_of


def fit(folder, batches=4, epochs=1, trainer=None, on_epoch=None, **kind):
    """Train with checkpoints, and return the trainer."""
    trainer, checkpoints = trainer or trainer_of(mlp(2)), Checkpoints(folder, **kind)
    options = {"checkpoints": checkpoints, "on_epoch": on_epoch, "progress": False}
    trainer.fit(data(mlp, batches), epochs=epochs, **options)
    return trainer


MANIFEST = Manifest(1, [], 1, {}, {}, 1, {}, {})


def begin_part(rank, folder, world, **kind):
    """Begin to write the part of a process, and return its writer."""
    saver = writer.CheckpointWriter(Checkpoints(folder, **kind), world)
    saver.save("tick", {f"stage{rank}.pt": {}}, replace(MANIFEST))
    return saver


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": -1}, "every is -1; use a number of at least 0"),
        ({"every": "500"}, "every is '500'; wanted a whole number"),
        ({"keep": 0}, "keep is 0; use a number of at least 1"),
        ({"keep": 2.5}, "keep is 2.5; wanted a whole number"),
        ({"on_error": "no"}, "on_error is 'no'; wanted 'warn' or 'stop'"),
        ({"note": "mine"}, "note is 'mine'; give a function"),
    ],
)
def test_invalid_options_are_refused(wrong, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        Checkpoints(tmp_path, **wrong)


def test_a_trainer_that_is_not_resumable_writes_none(tmp_path):
    trainer = trainer_of(mlp(2), resumable=False)
    with pytest.raises(OptionError, match="build the trainer with resumable=True"):
        trainer.save(tmp_path)
    stepped(trainer, data(mlp, 2))
    with pytest.raises(CheckpointError, match=r"stage 0: batch 0 is in flight.*not kept"):
        trainer.stages[0].state_dict()
    with pytest.raises(HocketError, match="nothing to save before the first batch"):
        trainer_of(mlp(2)).save(tmp_path)


@pytest.fixture
def full(monkeypatch):
    """Simulate a disk that is full from the second checkpoint on."""
    original, written = writer.write_file, []

    def write(folder, name, content):
        if len(written) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(name)
        return original(folder, name, content)

    monkeypatch.setattr(writer, "write_file", write)


@pytest.mark.usefixtures("full")
def test_on_a_full_disk_the_training_goes_on_with_the_checkpoint_before_or_stops(tmp_path):
    said = r"cannot write .*: No space left"
    with pytest.warns(UserWarning, match=said):
        trainer = fit(tmp_path, every=2)
    assert names(tmp_path) == [checkpoint_name(2, 0)]  # and nothing that would fill the disk
    other = trainer_of(mlp(2))
    other.fit(data(mlp, 4), epochs=1, progress=False)
    assert not different(values_of(trainer), values_of(other))
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "stop", every=2, on_error="stop")


def test_older_checkpoints_that_cannot_be_removed_are_no_failure(tmp_path, monkeypatch):
    refusal = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(writer, "keep_newest", Mock(side_effect=refusal))
    with pytest.warns(UserWarning, match=r"cannot remove older .*: Permission denied"):
        fit(tmp_path, epochs=2, on_error="stop")
    assert len(names(tmp_path)) == 2


def test_no_checkpoints_are_removed_from_another_place(tmp_path, monkeypatch):
    """In a folder that is a link from the start they are, in any working directory."""
    folder, other = tmp_path / "own", tmp_path / "other"
    fit(other, epochs=3, keep=9)
    kept = names(other)

    def replace_by_link(epoch):
        if epoch.number == 0:
            folder.rename(tmp_path / "moved")
            folder.symlink_to(other)

    with pytest.warns(UserWarning, match=r"cannot remove older .*own': it leads to another"):
        fit(folder, 2, epochs=2, keep=1, on_epoch=replace_by_link)
    assert set(kept) <= set(names(other))
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    fit("link", 2, epochs=3, keep=1, on_epoch=lambda _: os.chdir(other))
    assert [name[-1] for name in names(tmp_path / "disk")] == ["3"]


READ_ONLY = OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("write_file", ValueError("unforeseen"), "cannot write the checkpoint .*: ValueError"),
        ("finish_checkpoint", ValueError("unforeseen"), "cannot write .*: ValueError"),
        ("finish_checkpoint", READ_ONLY, "Read-only file system"),
        ("finish_checkpoint", CheckpointError("stage1.pt is not visible"), "stage1.pt"),
    ],
)
def test_no_error_of_the_thread_that_writes_is_lost(tmp_path, monkeypatch, name, error, said):
    trainer = stepped(trainer_of(mlp(2)), data(mlp, 1))
    monkeypatch.setattr(writer, name, Mock(side_effect=error))
    with pytest.raises(CheckpointError, match=said):
        trainer.save(tmp_path)
    assert names(tmp_path) == []


def test_a_disk_that_does_not_answer_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "write_file", Mock(side_effect=READ_ONLY))
    monkeypatch.setattr(writer.shutil, "disk_usage", Mock(side_effect=OSError("stale")))
    with pytest.raises(CheckpointError, match=r"Read-only.*an unknown number are free there"):
        stepped(trainer_of(mlp(2)), data(mlp, 1)).save(tmp_path)


class WaitingWorld:
    """One of two processes, the first of which does not wait long for the other one's part."""

    size = 2
    names = ("stage 0", "stage 1")

    def __init__(self, rank=0, store=None, slow_timeout_s=0.1):
        self.slow_timeout_s = slow_timeout_s
        self.is_main = rank == 0
        failures = SimpleNamespace(limits=SimpleNamespace(timeout_s=60))
        self.flags = StoreFlags(store or HashStore(), rank, 2, failures)

    def gather(self, value, purpose=""):
        return [value]


def test_a_missing_part_ends_in_a_timeout(tmp_path):
    saver = begin_part(0, tmp_path, WaitingWorld(), on_error="stop")
    with pytest.raises(CheckpointError, match=r"stage 1 has not written .* tick for 0\.1 s; "):
        saver.wait()
    assert newest_first(tmp_path) == []
    other = begin_part(1, tmp_path, WaitingWorld(1))  # waits for the first one
    other.wait()
    other.settle()
    assert other.take_complete() == []


def test_a_checkpoint_fails_if_the_store_hangs(tmp_path, monkeypatch):
    world = WaitingWorld()
    monkeypatch.setattr(world.flags, "values", Mock(side_effect=HangError("no answer")))
    saver = begin_part(0, tmp_path, world, on_error="stop")
    with pytest.raises(CheckpointError, match="no answer"):
        saver.wait()


def test_a_suspension_does_not_count_as_time_in_which_a_part_is_late(tmp_path, monkeypatch):
    store, real, late = HashStore(), time.monotonic, [0.0]
    monkeypatch.setattr(phases.time, "monotonic", lambda: real() + late[0])
    first, last = (WaitingWorld(rank, store, slow_timeout_s=60) for rank in (0, 1))
    savers = [begin_part(0, tmp_path, first, on_error="stop")]
    time.sleep(0.2)  # it waits for the other part
    late[0] = 2 * first.slow_timeout_s
    time.sleep(0.2)
    savers.append(begin_part(1, tmp_path, last, on_error="stop"))
    for saver in savers:
        saver.wait()
    assert (tmp_path / "tick").is_dir()


def test_a_part_that_is_written_after_rank_0_has_given_up_is_removed(tmp_path, monkeypatch):
    original, may_write = writer.write_file, threading.Event()

    def write(folder, name, content):
        if name == "stage1.pt":
            may_write.wait(60)
        return original(folder, name, content)

    monkeypatch.setattr(writer, "write_file", write)
    store = HashStore()
    worlds = [WaitingWorld(rank, store) for rank in range(2)]
    savers = [begin_part(n, tmp_path, world, on_error="stop") for n, world in enumerate(worlds)]
    with pytest.raises(CheckpointError, match="stage 1 has not written its part of the check"):
        savers[0].wait()
    may_write.set()
    savers[1].wait()
    assert list(tmp_path.iterdir()) == []
    for saver in savers:
        saver.settle()
        assert saver.take_complete() == []


def test_a_process_learns_that_a_checkpoint_is_complete_once_the_last_part_is(tmp_path):
    store = HashStore()
    worlds = [WaitingWorld(rank, store, slow_timeout_s=60) for rank in (0, 1)]
    last = begin_part(1, tmp_path, worlds[1])
    last.wait()
    assert last.take_complete() == []
    for saver in (last, begin_part(0, tmp_path, worlds[0])):
        saver.wait()
        saver.settle()
        assert saver.take_complete() == [tmp_path / "tick"]
        assert saver.take_complete() == []


@pytest.mark.parametrize("when", ["refused", "starting", "writing"])
def test_ctrl_c_waits_for_the_thread_that_writes_if_it_could_start(when, tmp_path, monkeypatch):
    start, write_file, stop = threading.Thread.start, writer.write_file, KeyboardInterrupt

    def start_saver(thread):
        if thread.name != "hocket-saver" or when != "refused":
            start(thread)
        if thread.name == "hocket-saver" and when != "writing":
            raise RuntimeError("can't start new thread") if when == "refused" else stop

    def write(*part):
        if when == "writing" and "stage0.pt" in part:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        return write_file(*part)

    trainer = stepped(trainer_of(mlp(2)), data(mlp, 1))
    monkeypatch.setattr(threading.Thread, "start", start_saver)
    monkeypatch.setattr(writer, "write_file", write)
    with pytest.raises(RuntimeError if when == "refused" else stop):
        trainer.save(tmp_path)
    assert names(tmp_path) == ([] if when == "refused" else [checkpoint_name(1, 0)])


def test_the_state_is_that_of_its_tick_however_slow_the_disk(tmp_path, monkeypatch):
    original, may_write = writer.write_file, threading.Event()

    def write(*args):
        may_write.wait(20)
        return original(*args)

    trainer, batches = trainer_of(mlp(2)), data(mlp, 6)
    monkeypatch.setattr(writer, "write_file", write)

    def release(_, number):
        if number == 5:
            may_write.set()

    checkpoints = Checkpoints(tmp_path / "slow", every=4)
    watched = WatchedBatches(batches, release)
    trainer.fit(watched, epochs=1, progress=False, checkpoints=checkpoints)
    resumed = trainer_of(mlp(2), resume=tmp_path / "slow" / checkpoint_name(4, 0))
    resumed.fit(batches, epochs=1, progress=False)
    assert not different(values_of(resumed), values_of(trainer))


def test_a_training_that_returns_to_an_earlier_checkpoint_keeps_its_own(tmp_path):
    fit(tmp_path, 9, every=4, keep=3)
    before = names(tmp_path)
    assert before == [checkpoint_name(4, 0), checkpoint_name(8, 0), checkpoint_name(11, 1)]
    trainer = trainer_of(mlp(2), resume=tmp_path / before[0])
    with pytest.warns(UserWarning, match=r"after .*000006-.* they are set aside as 'aside-1-"):
        fit(tmp_path, 9, trainer=trainer, every=3, keep=3)
    assert [path.name for path in newest_first(tmp_path)] == [
        checkpoint_name(*each) for each in ((11, 1), (9, 0), (6, 0))
    ]
    assert [name for name in names(tmp_path) if "aside" in name] == [
        f"aside-1-{name}" for name in before[1:]
    ]


# No two trainings write their checkpoints to one folder.


def test_a_training_that_was_not_resumed_leaves_the_checkpoints_of_another(tmp_path):
    folder = str(tmp_path / "new" / "folder")
    trainer = fit(folder, epochs=1)
    kept = sorted(os.listdir(folder))
    with pytest.raises(CheckpointError, match="such as 'tick-000000006-epoch-000001'"):
        fit(folder, epochs=1)
    assert sorted(os.listdir(folder)) == kept
    fit(folder, trainer=trainer)
    fit(folder, epochs=3, trainer=trainer_of(mlp(2), resume=folder))
    assert len(os.listdir(folder)) == 3


def test_a_folder_is_that_of_one_fit_at_a_time(tmp_path):
    """Also for a callback that saves into it."""
    said = "' is the folder of a fit that is under way; save checkpoints of your own, or of"
    own = set()
    with claim_folder(tmp_path, set()):
        with pytest.raises(CheckpointError, match=said):
            fit(tmp_path, epochs=1)
        with pytest.raises(CheckpointError, match=said), claim_folder(tmp_path, own):
            pytest.fail("it was claimed twice")
        fit(tmp_path / "own", epochs=1)
    assert own == set()  # one that was refused is no folder of one's own
    trainer = trainer_of(mlp(2))
    with pytest.raises(CheckpointError, match="is the folder of a fit that is under way"):
        fit(tmp_path, trainer=trainer, on_epoch=lambda result: trainer.save(tmp_path))


def test_workers_of_a_loader_do_not_hold_the_folder(tmp_path):
    examples = TensorDataset(torch.randn(12, 5).double(), torch.zeros(12).long())
    loader = DataLoader(examples, batch_size=4, num_workers=1, persistent_workers=True)
    trainer = trainer_of(mlp(2))
    for _ in range(2):
        trainer.fit(loader, epochs=1, checkpoints=Checkpoints(tmp_path), progress=False)
    trainer.save(tmp_path)


def test_a_fit_that_was_refused_goes_on_from_the_checkpoint_when_it_is_corrected(tmp_path):
    fit(tmp_path / "first", epochs=2)
    fit(tmp_path / "other", epochs=1)
    trainer, batches = trainer_of(mlp(2), resume=tmp_path / "first"), data(mlp, 4)
    for options, error in (
        ({"checkpoints": Checkpoints(tmp_path / "other")}, CheckpointError),
        ({"callbacks": print}, OptionError),
    ):
        with pytest.raises(error, match=r"another training|give a list"):
            trainer.fit(batches, epochs=3, progress=False, **options)
    history = trainer.fit(batches, epochs=3, progress=False)
    assert [epoch.number for epoch in history] == [0, 1, 2]
    assert trainer.epoch == 3


def test_file_systems_without_locks_lose_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(95, "Not supported")))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with claim_folder(tmp_path, set()):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
