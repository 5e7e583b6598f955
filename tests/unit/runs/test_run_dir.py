"""The folder of a run is new, belongs to one training at a time, and leads nowhere else."""

import os
import resource
import time
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from contract.small import bits
from hocket.errors import RunFolderError
from hocket.runs.config import RunConfig
from hocket.runs.run_dir import LOCK, create_run_dir, lock_run_dir, require_no_links
from hocket.runs.train import _write_description
from hocket.training.weights_file import save_weights


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    """Where none can be made there is an error and no endless search."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    names = [create_run_dir(RunConfig()).name for _ in range(3)]
    assert names == [f"fdg2-mlp-digits-now{end}" for end in ("", "-1", "-2")]
    (tmp_path / "runs").rename(tmp_path / "before")
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(RunFolderError, match="cannot make the run folder 'runs/fdg2-"):
        create_run_dir(RunConfig())


def test_an_empty_folder_is_as_good_as_a_new_one(tmp_path):
    run_dir = tmp_path / "mine"
    for _ in range(2):
        assert create_run_dir(RunConfig(run_dir=run_dir)) == run_dir
    (run_dir / "file").touch()
    for taken in (run_dir, run_dir / "file"):
        with pytest.raises(RunFolderError, match="exists already; name another"):
            create_run_dir(RunConfig(run_dir=taken))


def test_a_folder_is_locked_by_one_training_and_the_lock_of_a_stranger_is_not_followed(
    tmp_path,
):
    def lock_again(words):
        with pytest.raises(RunFolderError, match=words), lock_run_dir(tmp_path):
            raise AssertionError

    for _ in range(2):
        with lock_run_dir(tmp_path):
            lock_again(rf"is in use by process {os.getpid()} on \S+; wait until it has ended")
    (tmp_path / LOCK).unlink()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / LOCK).symlink_to("victim")
    lock_again(r"cannot write .*\.lock")
    assert (tmp_path / "victim").read_text() == "mine"


def test_links_pipes_and_devices_anywhere_in_a_folder_are_all_named(tmp_path, monkeypatch):
    run = tmp_path / "run"
    (run / "checkpoints/tick").mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    require_no_links(run)
    (run / "summary.json").symlink_to("nowhere")
    (run / "checkpoints/other").symlink_to(tmp_path)
    os.mkfifo(run / "checkpoints/tick/stage0.pt")
    words = "'checkpoints/other', 'checkpoints/tick/stage0.pt', 'summary.json'; replace"
    with pytest.raises(RunFolderError, match=words):
        require_no_links(run)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/metrics.jsonl").hardlink_to(run / "metrics.jsonl")
    with pytest.raises(RunFolderError, match=r"hard.* 'metrics.jsonl'; replace"):
        require_no_links(tmp_path / "own")
    # A file that another stage removes meanwhile is no link.
    monkeypatch.setattr(os, "walk", lambda folder: [(folder, [], ["gone.part"])])
    require_no_links(tmp_path / "own")


def test_a_process_on_another_machine_that_cannot_make_the_folder_says_so(tmp_path):
    (tmp_path / "file").touch()
    elsewhere = Mock(is_main_process=False)
    _write_description(RunConfig(), elsewhere, tmp_path / "run")
    assert [*(tmp_path / "run").iterdir()] == []
    with pytest.raises(RunFolderError, match=r"cannot write .*file/run': Not a directory"):
        _write_description(RunConfig(), elsewhere, tmp_path / "file/run")


def test_weights_as_safetensors_load_without_hocket(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    network[2].weight = network[0].weight  # shared
    network[0].weight.data = network[0].weight.data.t()
    for ending in ("pt", "safetensors"):
        save_weights(network, tmp_path / f"network.{ending}")
    weights = safetensors.load_file(tmp_path / "network.safetensors")
    pickled = torch.load(tmp_path / "network.pt", weights_only=True)
    assert bits(weights) == bits(network.state_dict()) == bits(pickled)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_that_a_disk_does_not_take_are_an_error_of_the_system(tmp_path, suffix):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with lock_run_dir(tmp_path), pytest.raises(OSError, match="File too large"):
            save_weights(nn.Linear(99, 9), tmp_path / f"network{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == [tmp_path / LOCK], "the lock holds without a name"
