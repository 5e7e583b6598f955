"""Options of the ordinary recipe together: smoothed and mixed targets, workers, averages."""

import pytest
import torch

from contract.small import bits
from hocket.distributed.launching.launch import launch
from hocket.errors import DataError, OptionError
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
    """Train in a folder of its own."""
    train(RunConfig(**TOGETHER, run_dir=folder))
    return 0


def files_of(folder):
    """Weights and their averages."""
    return [bits(torch.load(folder / name)) for name in ("network.pt", "network-averaged.pt")]


def test_processes_have_the_bits_of_one_process(tmp_path):
    run(tmp_path / "alone")
    assert launch(run, tmp_path / "processes", processes=2, threads=1) == 0
    weights, averages = files_of(tmp_path / "alone")
    assert weights != averages
    assert files_of(tmp_path / "processes") == [weights, averages]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("dgl:similarity=0.5", "similarity matching compares samples by their class indices"),
        ("cdni", "a conditional synthesizer .* wanted class indices of shape"),
    ],
)
def test_what_needs_the_class_of_each_sample_refuses_mixed_targets(tmp_path, method, said):
    choices = {**TOGETHER, "method": method, "run_dir": tmp_path / "run"}
    with pytest.raises(DataError, match=said):
        train(RunConfig(**choices))


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
