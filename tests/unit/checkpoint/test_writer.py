"""Checkpoints during a training: when they are written, how many, and what a failure does."""

import errno
import os
import threading
from functools import partial

import pytest
import torch
from torch.distributed import HashStore

from contract.small import data, different, mlp, sgd
from hocket import Checkpoints, Trainer
from hocket.checkpoint import writer
from hocket.checkpoint.directory import Manifest, checkpoint_name, newest_first
from hocket.distributed.flags import StoreFlags
from hocket.errors import CheckpointError, HocketError, OptionError
from hocket.methods import BP, FDG


def build_trainer(method=None, **options):
    options = {"resumable": True} | options
    return Trainer(mlp(2), method=method or FDG(), optimizer=partial(sgd, lr=0.01), **options)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def weights(trainer):
    return [p for stage in trainer.stages for p in stage.module.parameters()]


def test_checkpoints_are_written_every_few_ticks_and_at_the_end_of_each_epoch(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=3, keep=10)
    build_trainer().fit(data(mlp, 4), epochs=2, progress=False, checkpoints=checkpoints)
    wanted = [(3, 0), (4, 1), (6, 1), (10, 2)]  # the last tick completes what was in flight
    assert names(tmp_path) == [checkpoint_name(*each) for each in wanted]


def test_by_default_checkpoints_are_written_at_the_ends_of_epochs(tmp_path):
    trainer = build_trainer(BP())
    trainer.fit(
        data(mlp, 4), epochs=3, progress=False, checkpoints=Checkpoints(tmp_path, keep=2)
    )
    assert names(tmp_path) == [checkpoint_name(8, 2), checkpoint_name(12, 3)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": -1}, "every is -1; use 0 or a number of ticks"),
        ({"keep": 0}, "keep is 0; use at least 1"),
        ({"on_error": "no"}, "on_error is 'no'; use 'warn' or 'stop'"),
    ],
)
def test_invalid_options_are_refused(wrong, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        Checkpoints(tmp_path, **wrong)


def test_a_trainer_that_is_not_resumable_writes_none(tmp_path):
    trainer = build_trainer(resumable=False)
    with pytest.raises(OptionError, match="build the trainer with resumable=True"):
        trainer.save(tmp_path)
    for batch in data(mlp, 2):
        trainer.step(*batch)
    with pytest.raises(CheckpointError, match=r"stage 0: batch 0 is in flight.*not kept"):
        trainer.stages[0].state_dict()


def test_before_the_first_batch_there_is_nothing_to_save(tmp_path):
    with pytest.raises(HocketError, match="nothing to save before the first batch"):
        build_trainer().save(tmp_path)


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


def test_on_a_full_disk_the_training_goes_on_with_the_checkpoint_before(full, tmp_path):
    checkpoints, trainer, other = (
        Checkpoints(tmp_path, every=2),
        build_trainer(),
        build_trainer(),
    )
    with pytest.warns(
        UserWarning,
        match=r"cannot write .*: No space left.*MiB are free there; the training goes on",
    ):
        trainer.fit(data(mlp, 4), epochs=1, progress=False, checkpoints=checkpoints)
    assert names(tmp_path) == [checkpoint_name(2, 0)]  # and nothing that would fill the disk
    other.fit(data(mlp, 4), epochs=1, progress=False)
    assert not different(weights(trainer), weights(other))


def test_on_a_full_disk_the_training_stops_if_on_error_is_stop(full, tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2, on_error="stop")
    with pytest.raises(CheckpointError, match=r"cannot write .*: No space left"):
        build_trainer().fit(data(mlp, 4), epochs=1, progress=False, checkpoints=checkpoints)
    assert names(tmp_path) == [checkpoint_name(2, 0)]


def test_a_manifest_that_cannot_be_written_is_a_failure_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    trainer = build_trainer()
    trainer.step(*data(mlp, 1)[0])
    monkeypatch.setattr(writer, "finish_checkpoint", refuse)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        trainer.save(tmp_path)
    assert names(tmp_path) == []


def test_a_part_that_is_not_visible_is_a_failure_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise CheckpointError("stage1.pt was written, but is not visible")

    trainer = build_trainer()
    trainer.step(*data(mlp, 1)[0])
    monkeypatch.setattr(writer, "finish_checkpoint", refuse)
    with pytest.raises(CheckpointError, match=r"is not complete: stage1.pt"):
        trainer.save(tmp_path)


class WaitingWorld:
    """Rank 0 of two processes, of which the other one never writes its part."""

    is_main = True
    timeout_s = 0.1

    def __init__(self):
        self.flags = StoreFlags(HashStore(), failures=None, rank=0, size=2)

    def gather(self, value):
        return [value]


def test_a_missing_part_ends_in_a_timeout(tmp_path):
    saver = writer.CheckpointWriter(Checkpoints(tmp_path, on_error="stop"), WaitingWorld())
    saver.save("tick", {"stage0.pt": {}}, Manifest(1, [], 1, {}, {}, 1, {}, {}))
    with pytest.raises(CheckpointError, match="did not write its part of a checkpoint in time"):
        saver.wait()
    assert newest_first(tmp_path) == []


def test_the_state_is_that_of_its_tick_however_slow_the_disk(tmp_path, monkeypatch):
    original, may_write = writer.write_file, threading.Event()

    def write(*args):
        may_write.wait(20)
        return original(*args)

    trainers = [build_trainer(), build_trainer()]
    batches = data(mlp, 6)
    trainers[0].fit(batches[:3], epochs=1, progress=False, checkpoints=Checkpoints(tmp_path))
    monkeypatch.setattr(writer, "write_file", write)

    class Slow(list):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                if number == 5:
                    may_write.set()
                yield batch

    checkpoints = Checkpoints(tmp_path / "slow", every=4)
    trainers[1].fit(Slow(batches), epochs=1, progress=False, checkpoints=checkpoints)
    resumed = build_trainer()
    resumed.resume(tmp_path / "slow" / checkpoint_name(4, 0))
    resumed.fit(batches, epochs=1, progress=False)
    assert not different(weights(resumed), weights(trainers[1]))
    assert torch.is_tensor(weights(resumed)[0])
