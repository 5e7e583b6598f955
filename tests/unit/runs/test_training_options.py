"""Options of the ordinary recipe together: smoothed and mixed targets, workers, averages."""

import json
from unittest.mock import Mock

import pytest
import torch

from contract.small import bits
from hocket import Trainer
from hocket.distributed.launching.launch import launch
from hocket.errors import OptionError
from hocket.runs import training_run
from hocket.runs.config import RunConfig
from hocket.runs.train import train

TOGETHER = {
    "network": "mlp:hidden=[6,6,6]",
    "data": "synthetic:shape=[2,4,4],classes=3,examples=32,test_examples=8",
    "method": "dgl",  # whose head has the same targets
    "batch_size": 8,
    "epochs": 1,
    "mixup": 0.5,
    "cutmix": 1.0,
    "label_smoothing": 0.1,
    "workers": 2,
    "average_weights": 0.5,
}


def run(folder):
    train(RunConfig(**TOGETHER, run_dir=folder))
    return 0


def files_of(folder):
    return [bits(torch.load(folder / name)) for name in ("network.pt", "network-averaged.pt")]


def test_processes_have_the_bits_of_one_process(tmp_path):
    run(tmp_path / "alone")
    assert launch(run, tmp_path / "processes", processes=2, threads=1) == 0
    weights, averages = files_of(tmp_path / "alone")
    assert weights != averages
    assert files_of(tmp_path / "processes") == [weights, averages]


@pytest.mark.parametrize(
    ("choice", "processes", "said"),
    [
        ({"updates": 3, "epochs": 20}, 1, "counts its own updates; give epochs"),
        ({"evaluate_every": 3}, 1, "counts its own updates; give epochs"),
        ({"early_stopping": 2}, 2, "early_stopping compares epochs"),
        ({"keep_best": "test_error"}, 2, "keep_best compares epochs"),
    ],
)
def test_what_stages_that_run_freely_do_not_count_is_refused_before_there_is_a_folder(
    choice, processes, said, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    config = {"method": "dgl-async", "run_dir": tmp_path / "run"} | choice
    with pytest.raises(OptionError, match=said):
        train(RunConfig(**TOGETHER | config))
    assert not (tmp_path / "run").exists()


# A GPU that fails: its own error is told, and the summary is written all the same.

ASSERTED = RuntimeError("device-side assert triggered")
SHORT = torch.OutOfMemoryError("CUDA out of memory")


def test_weights_that_a_failed_gpu_does_not_give_back_cost_no_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", Mock(side_effect=ASSERTED))
    monkeypatch.setattr(training_run, "save_weights", Mock(side_effect=ASSERTED))
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="device-side assert triggered") as caught:
        train(RunConfig(network="mlp:hidden=[16,16]", data="digits", epochs=1, run_dir=folder))
    assert "the weights reached could not be read: device-side" in caught.value.__notes__[-1]
    assert json.loads((folder / "summary.json").read_text())["state"] == "failed"


def test_short_memory_is_not_taken_for_data_that_a_network_does_not_take(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "evaluate", Mock(side_effect=SHORT))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        train(RunConfig(network="mlp:hidden=[16,16]", data="digits", run_dir=tmp_path / "run"))
