"""Whole trainings, on text and on real images; a saved network loads without Hocket."""

import json
import os
from pathlib import Path

import pytest
import torch

import hocket
from end_to_end.namespaces import run_python
from hocket.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DATA_DIR = Path(os.environ.get("HOCKET_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Return a function that runs `hocket train`: summary and weights that it writes."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        assert main(["train", *map(str, words), "--run-dir", "mine"]) == 0
        weights = torch.load("mine/network.pt", weights_only=True)
        return json.loads(Path("mine/summary.json").read_text()), weights

    return run


def test_a_transformer_learns_a_text(tmp_path, trained):
    (tmp_path / "text.txt").write_text("she sells sea shells by the sea shore. " * 60)
    summary, weights = trained(
        *("--network", "gpt:width=32,depth=2,heads=2"),
        *("--data", "text:context=16", "--data-dir", "text.txt", "--batch-size", 8),
        *("--optimizer", "AdamW:lr=0.002", "--epochs", 5),
    )
    first, *_, last = (epoch["evaluation"] for epoch in summary["epochs"])
    assert last["loss"] < first["loss"]
    assert last["error"] < 0.5, "the most frequent character is 1 in 6"
    vocabulary = len(set((tmp_path / "text.txt").read_text()))
    network = hocket.zoo.gpt(vocab=vocabulary, context=16, width=32, depth=2, heads=2)
    network.load_state_dict(weights, strict=True)


@pytest.mark.skipif(
    not (DATA_DIR / "cifar10").is_dir(),
    reason="no folder cifar10 in HOCKET_DATA; set it to a folder with the parquet files",
)
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
