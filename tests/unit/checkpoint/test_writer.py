"""Checkpoints while a training goes on: when, how many, and what a failure does to it."""

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


def trainer_of(method=None, **options):
    options = {"resumable": True} | options
    return Trainer(mlp(2), method=method or FDG(), optimizer=partial(sgd, lr=0.01), **options)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def weights(trainer):
    return [p for stage in trainer.stages for p in stage.module.parameters()]


def test_they_come_every_few_ticks_and_at_the_end_of_each_epoch(tmp_path):
    kind = Checkpoints(tmp_path, every=3, keep=10)
    trainer_of().fit(data(mlp, 4), epochs=2, progress=False, checkpoints=kind)
    wanted = [(3, 0), (4, 1), (6, 1), (10, 2)]  # the last tick completes what was in flight
    assert names(tmp_path) == [checkpoint_name(*each) for each in wanted]


def test_without_a_number_they_come_at_the_ends_of_epochs(tmp_path):
    trainer = trainer_of(BP())
    trainer.fit(
        data(mlp, 4), epochs=3, progress=False, checkpoints=Checkpoints(tmp_path, keep=2)
    )
    assert names(tmp_path) == [checkpoint_name(8, 2), checkpoint_name(12, 3)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"every": -1}, "every is -1; use 0 or a number of ticks"),
        ({"keep": 0}, "keep is 0; use at least 1"),
        ({"on_error": "no"}, "on_error is 'no'; use 'warn' or 'stop'"),
    ],
)
def test_wrong_choices_are_refused(wrong, words, tmp_path):
    with pytest.raises(OptionError, match=words):
        Checkpoints(tmp_path, **wrong)


def test_a_trainer_that_keeps_nothing_leaves_none(tmp_path):
    trainer = trainer_of(resumable=False)
    with pytest.raises(OptionError, match="build the trainer with resumable=True"):
        trainer.save(tmp_path)
    for batch in data(mlp, 2):
        trainer.step(*batch)
    with pytest.raises(CheckpointError, match=r"stage 0: batch 0 is in flight.*not kept"):
        trainer.stages[0].state_dict()


def test_before_the_first_batch_there_is_nothing_to_save(tmp_path):
    with pytest.raises(HocketError, match="nothing to save before the first batch"):
        trainer_of().save(tmp_path)


@pytest.fixture
def full(monkeypatch):
    """A disk that is full from the second checkpoint on."""
    own, written = writer.write_file, []

    def write(folder, name, content):
        if len(written) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(name)
        return own(folder, name, content)

    monkeypatch.setattr(writer, "write_file", write)


def test_on_a_full_disk_the_training_goes_on_with_the_checkpoint_before(full, tmp_path):
    kind, trainer, other = Checkpoints(tmp_path, every=2), trainer_of(), trainer_of()
    with pytest.warns(
        UserWarning,
        match=r"cannot write .*: No space left.*MiB are free there; the training goes on",
    ):
        trainer.fit(data(mlp, 4), epochs=1, progress=False, checkpoints=kind)
    assert names(tmp_path) == [checkpoint_name(2, 0)]  # and nothing that would fill the disk
    other.fit(data(mlp, 4), epochs=1, progress=False)
    assert not different(weights(trainer), weights(other))


def test_on_a_full_disk_the_training_stops_where_it_was_asked_to(full, tmp_path):
    kind = Checkpoints(tmp_path, every=2, on_error="stop")
    with pytest.raises(CheckpointError, match=r"cannot write .*: No space left"):
        trainer_of().fit(data(mlp, 4), epochs=1, progress=False, checkpoints=kind)
    assert names(tmp_path) == [checkpoint_name(2, 0)]


def test_a_manifest_that_cannot_be_written_is_a_failure_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    trainer = trainer_of()
    trainer.step(*data(mlp, 1)[0])
    monkeypatch.setattr(writer, "seal", refuse)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        trainer.save(tmp_path)
    assert names(tmp_path) == []


def test_a_part_that_is_not_to_be_seen_is_a_failure_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise CheckpointError("stage1.pt was written, but is not to be seen")

    trainer = trainer_of()
    trainer.step(*data(mlp, 1)[0])
    monkeypatch.setattr(writer, "seal", refuse)
    with pytest.raises(CheckpointError, match=r"is not complete: stage1.pt"):
        trainer.save(tmp_path)


class Waiting:
    """The first of two processes, the other one of which never says a word."""

    leads = True

    def __init__(self):
        self.alarm = type("Alarm", (), {"timeout_s": 0.1})
        self.board = StoreFlags(HashStore(), self.alarm, rank=0, size=2)

    def gather(self, value):
        return [value]


def test_a_part_that_does_not_come_ends_in_time(tmp_path):
    own = writer.CheckpointWriter(Checkpoints(tmp_path, on_error="stop"), Waiting())
    own.save("tick", {"stage0.pt": {}}, Manifest(1, [], 1, {}, {}, 1, {}, {}))
    with pytest.raises(CheckpointError, match="did not write its part of a checkpoint in time"):
        own.wait()
    assert newest_first(tmp_path) == []


def test_the_state_is_that_of_its_tick_however_long_writing_takes(tmp_path, monkeypatch):
    own, goes_on = writer.write_file, threading.Event()

    def write(*words):
        goes_on.wait(20)
        return own(*words)

    trainers = [trainer_of(), trainer_of()]
    batches = data(mlp, 6)
    trainers[0].fit(batches[:3], epochs=1, progress=False, checkpoints=Checkpoints(tmp_path))
    monkeypatch.setattr(writer, "write_file", write)

    class Slow(list):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                if number == 5:
                    goes_on.set()
                yield batch

    kind = Checkpoints(tmp_path / "slow", every=4)
    trainers[1].fit(Slow(batches), epochs=1, progress=False, checkpoints=kind)
    resumed = trainer_of()
    resumed.resume(tmp_path / "slow" / checkpoint_name(4, 0))
    resumed.fit(batches, epochs=1, progress=False)
    assert not different(weights(resumed), weights(trainers[1]))
    assert torch.is_tensor(weights(resumed)[0])
