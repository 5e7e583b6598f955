"""Whole trainings, on real images and on digits; a saved network loads without Hocket."""

import json
from pathlib import Path

import pytest
import torch

import hocket
from end_to_end.namespaces import run_python
from hocket.cli.main import main
from unit.data.test_cifar import DATA_DIR, real


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return a function that runs `hocket train`: summary and weights that it writes."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        assert main(["train", *map(str, words), "--run-dir", "mine"]) == 0
        weights = torch.load("mine/network.pt", weights_only=True)
        return json.loads(Path("mine/summary.json").read_text()), weights

    return run


@real
def test_real_images_from_a_recipe(trained):
    summary, weights = trained(
        *("--recipe", "fdg-cifar", "--network", "resnet8", "--plan", "layer2_0"),
        *("--data", "cifar10:subset=512", "--data-dir", DATA_DIR, "--epochs", 1),
        *("--hold-out", 0.5),
    )
    (epoch,) = summary["epochs"]
    assert (epoch["samples"], epoch["evaluation"]["samples"]) == (256, 256)
    assert summary["cuts"] == ["layer2_0"]
    assert [stage["delay"] for stage in summary["stages"]] == [2, 0]
    assert 0 < epoch["evaluation"]["error"] < 0.95
    hocket.zoo.resnet8(num_classes=10).load_state_dict(weights, strict=True)


# The same network by hand, and the digits as they are documented: 1437 images for training, in
# an order drawn once; pixels of 0 to 16 scaled to 0 to 1, less their mean, by their deviation.
BY_HAND = """
import sys
sys.modules["hocket"] = None  # an import fails as if it were not installed
from collections import OrderedDict
import numpy as np, torch
from sklearn.datasets import load_digits
from torch import nn

torch.set_num_threads(1)
network = nn.Sequential(OrderedDict(
    hidden0=nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()),
    hidden1=nn.Sequential(nn.Linear(32, 32), nn.ReLU()),
    head=nn.Sequential(nn.Linear(32, 10)),
))
network.load_state_dict(torch.load("mine/network.pt", weights_only=True), strict=True)
images, labels = load_digits(return_X_y=True)
tested = np.random.RandomState(0).permutation(len(images))[-360:]
inputs = (torch.tensor(images[tested], dtype=torch.float32) / 16 - 0.3053) / 0.3760
with torch.no_grad():
    predicted = network.eval()(inputs.view(-1, 1, 8, 8)).argmax(1)
print(float((predicted.numpy() != labels[tested]).mean()))
assert not any(name.split(".")[0] == "hocket" for name, m in sys.modules.items() if m)
"""


def test_it_loads_by_hand_and_makes_the_same_mistakes(tmp_path, trained):
    words = ("--optimizer", "SGD:lr=0.05,momentum=0.9", "--epochs", 5)
    summary, _ = trained("--network", "mlp:hidden=[32,32]", *words)
    error = float(run_python("-c", BY_HAND, folder=tmp_path))
    assert error == pytest.approx(summary["epochs"][-1]["evaluation"]["error"])
    assert error < 0.1
