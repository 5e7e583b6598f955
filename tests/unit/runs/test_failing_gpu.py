"""A GPU that fails in a run: its own error is told, and the summary is written all the same."""

import json
from unittest.mock import Mock

import pytest
import torch

from hocket import Trainer
from hocket.runs import training_run
from hocket.runs.config import RunConfig
from hocket.runs.train import train

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
