"""No two trainings write their checkpoints to one folder."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from contract.small import data, mlp, sgd
from hocket import FDG, Checkpoints, Trainer
from hocket.checkpoint.claimed_folders import claim_folder
from hocket.errors import CheckpointError, OptionError

BATCHES = data(mlp, 4)


def fit(folder, *, resumed=False, **options):
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, resumable=True)
    if resumed:
        trainer.resume(folder)
    trainer.fit(BATCHES, checkpoints=Checkpoints(folder), progress=False, **options)
    return trainer


def test_a_training_that_was_not_resumed_leaves_the_checkpoints_of_another(tmp_path):
    folder = str(tmp_path / "new" / "folder")
    trainer = fit(folder, epochs=1)
    kept = sorted(os.listdir(folder))
    with pytest.raises(CheckpointError, match="such as 'tick-000000006-epoch-000001'"):
        fit(folder, epochs=1)
    assert sorted(os.listdir(folder)) == kept
    trainer.fit(BATCHES, epochs=1, checkpoints=Checkpoints(folder), progress=False)
    fit(folder, epochs=3, resumed=True)
    assert len(os.listdir(folder)) == 3


def test_a_folder_is_that_of_one_fit_at_a_time(tmp_path):
    """Also for a callback that saves into it."""
    said = "' is the folder of a fit that is under way; save checkpoints of your own, or of"
    with claim_folder(tmp_path, set()):
        with pytest.raises(CheckpointError, match=said):
            fit(tmp_path, epochs=1)
        fit(tmp_path / "own", epochs=1)
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, resumable=True)
    options = {"checkpoints": Checkpoints(tmp_path), "progress": False, "epochs": 1}
    with pytest.raises(CheckpointError, match="is the folder of a fit that is under way"):
        trainer.fit(BATCHES, on_epoch=lambda result: trainer.save(tmp_path), **options)


def test_workers_of_a_loader_do_not_hold_the_folder(tmp_path):
    examples = TensorDataset(torch.randn(12, 5).double(), torch.zeros(12).long())
    loader = DataLoader(examples, batch_size=4, num_workers=1, persistent_workers=True)
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, resumable=True)
    for _ in range(2):
        trainer.fit(loader, epochs=1, checkpoints=Checkpoints(tmp_path), progress=False)
    trainer.save(tmp_path)


def test_a_folder_that_was_refused_is_no_folder_of_ones_own(tmp_path):
    own = set()
    with (
        claim_folder(tmp_path, set()),
        pytest.raises(CheckpointError, match="is the folder of a fit that is under way"),
        claim_folder(tmp_path, own),
    ):
        pytest.fail("it was claimed twice")
    fit(tmp_path, epochs=1)
    with (
        pytest.raises(CheckpointError, match="has checkpoints of another training"),
        claim_folder(tmp_path, own),
    ):
        pytest.fail("it was claimed")


def test_a_fit_that_was_refused_goes_on_from_the_checkpoint_when_it_is_corrected(tmp_path):
    fit(tmp_path / "first", epochs=2)
    fit(tmp_path / "other", epochs=1)
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, resumable=True)
    trainer.resume(tmp_path / "first")
    for options, error in (
        ({"checkpoints": Checkpoints(tmp_path / "other")}, CheckpointError),
        ({"callbacks": print}, OptionError),
    ):
        with pytest.raises(error, match=r"another training|give a list"):
            trainer.fit(BATCHES, epochs=3, progress=False, **options)
    history = trainer.fit(BATCHES, epochs=3, progress=False)
    assert [epoch.number for epoch in history] == [0, 1, 2]
    assert trainer.epoch == 3


def test_file_systems_without_locks_lose_no_descriptor(tmp_path, monkeypatch):
    def refuse(number, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with claim_folder(tmp_path, set()):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
