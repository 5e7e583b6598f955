"""A saved network loads without Hocket."""

import json

import pytest

from end_to_end.namespaces import run_python
from hocket.runs.config import RunConfig
from hocket.runs.train import train

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


def test_it_loads_by_hand_and_makes_the_same_mistakes(tmp_path):
    run = RunConfig(
        network="mlp:hidden=[32,32]",
        optimizer="SGD:lr=0.05,momentum=0.9",
        epochs=5,
        run_dir=tmp_path / "mine",
    )
    train(run)
    error = float(run_python("-c", BY_HAND, folder=tmp_path))
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert error == pytest.approx(summary["epochs"][-1]["evaluation"]["error"])
    assert error < 0.1
