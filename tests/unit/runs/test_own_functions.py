"""Options take functions of files and modules of the user."""

import sys

import pytest
import torch
from torch import nn

from hocket import data
from hocket.errors import OptionError
from hocket.options import Named
from hocket.runs.build import build_network
from hocket.runs.config import RunConfig

DIGITS = data.load("digits", batch_size=32)
FILE = """
import torch
from torch import nn

import beside


def small(num_classes, in_features, width=4):
    layers = nn.Linear(in_features, width), nn.Linear(width, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)


def failing():
    return 1 / 0


def number(classes=3):
    return classes


_hidden = 3
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "nets_of_mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("")
    yield
    for name in ("nets_of_mine", "beside"):
        sys.modules.pop(name, None)


def test_a_file_that_fails_leaves_no_module(tmp_path):
    (tmp_path / "nets_of_mine.py").write_text("1 / 0")
    with pytest.raises(OptionError, match="ZeroDivisionError"):
        build_network(RunConfig(network="nets_of_mine.py:small"), DIGITS)
    assert "nets_of_mine" not in sys.modules


@pytest.mark.parametrize("module", ["nets_of_mine.py", "./nets_of_mine.py", "nets_of_mine"])
def test_a_file_and_a_module_give_the_network_fitted_to_the_data(module):
    run = RunConfig(network=f"{module}:small:width=6")
    network = build_network(run, DIGITS)
    assert isinstance(network, nn.Sequential)
    assert network[1].weight.shape == (6, 64)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert Named.parse(run.network).title == "small"
    again = build_network(run, DIGITS)
    assert torch.equal(network[1].weight, again[1].weight)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        ("nowhere:small", r"cannot import 'nowhere' for the network 'nowhere:small'.*ModuleNo"),
        ("nets_of_mine.py", r"is a file; .*nets_of_mine.py:build"),
        ("nowhere.py:small", "FileNotFoundError: .*nowhere.py.*name a module, or a file"),
        ("nets_of_mine:smal", "unknown function of 'nets_of_mine': 'smal' .did you mean"),
        ("nets_of_mine:_hidden", "unknown function of 'nets_of_mine': '_hidden'"),
        ("nets_of_mine:small:depth=2", "small does not take these options: got an unexpected"),
        ("nets_of_mine:failing", "failing fails: ZeroDivisionError"),
        ("resnet20:wide", "cannot read 'wide' in 'resnet20:wide'"),
        ("nets_of_mine:number", "number returns a int; return a torch.nn.*Module"),
    ],
)
def test_what_goes_wrong_is_told(network, text):
    with pytest.raises(OptionError, match=f"(?s){text}"):
        build_network(RunConfig(network=network), DIGITS)
