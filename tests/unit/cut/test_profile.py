"""Layers are timed as they train, and stay as they were."""

import copy

import pytest
import torch
from torch import nn

from hocket import zoo
from hocket.cut import chain
from hocket.cut.profile import profile


class Two(nn.Module):
    """Gives a tensor and its sign, which has no gradient; takes either."""

    def forward(self, values):
        values = values[0] if isinstance(values, tuple) else values
        return values * 2, values.detach().sign().long()


def test_every_layer_takes_time_and_larger_layers_more():
    layers = {"small": nn.Linear(200, 4), "large": nn.Linear(4, 200_000)}
    times = profile(layers, torch.randn(4, 200), repetitions=3)
    assert list(times) == ["small", "large"]
    assert 0 < times["small"] < times["large"]


def test_the_network_is_left_alone():
    network = zoo.resnet8()
    before = copy.deepcopy(network.state_dict())
    profile(chain(network), torch.randn(2, 3, 8, 8), repetitions=2)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize(
    ("layers", "sample"),
    [
        (chain(zoo.gpt(vocab=7, context=4)), torch.zeros(2, 4, dtype=torch.long)),
        ({"two": Two(), "again": Two()}, torch.ones(2, requires_grad=True)),
        ({"flatten": nn.Flatten(), "linear": nn.Linear(4, 2)}, torch.ones(2, 2, 2)),
    ],
    ids=["tokens", "several tensors", "nothing to differentiate at first"],
)
def test_anything_that_trains_can_be_timed(layers, sample):
    assert profile(layers, sample, repetitions=1).keys() == layers.keys()
