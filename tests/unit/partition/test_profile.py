"""Layers are timed as in training, and do not change."""

import copy
import time

import pytest
import torch
from torch import nn

from contract.small import Network
from hocket import cut, zoo
from hocket.partition import layers_in_order
from hocket.partition.costs.profile import profile
from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import measure_layers
from hocket.partition.parts.copied_modules import copy_modules
from unit.partition.networks import Chain, Layers


class Two(nn.Module):
    """Layer that returns a tensor and its sign, which has no gradient."""

    def forward(self, values):
        values = values[0] if isinstance(values, tuple) else values
        return values * 2, values.detach().sign().long()


def test_every_layer_takes_time_larger_layers_more_and_none_changes():
    layers = {"small": nn.Linear(200, 4), "large": nn.Linear(4, 200_000)}
    times = profile(layers, torch.randn(4, 200), repetitions=3)
    assert list(times) == ["small", "large"]
    assert 0 < times["small"].total_s < times["large"].total_s
    assert all(cost.forward_s > 0 and cost.backward_s > 0 for cost in times.values())
    network = zoo.resnet8()
    before = copy.deepcopy(network.state_dict())
    profile(layers_in_order(network), torch.randn(2, 3, 8, 8), repetitions=2)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize(
    ("layers", "sample"),
    [
        (layers_in_order(zoo.gpt(vocab=7, context=4)), torch.zeros(2, 4, dtype=torch.long)),
        ({"two": Two(), "again": Two()}, torch.ones(2, requires_grad=True)),
        ({"flatten": nn.Flatten(), "linear": nn.Linear(4, 2)}, torch.ones(2, 2, 2)),
    ],
    ids=["tokens", "several tensors", "nothing to differentiate at first"],
)
def test_anything_that_trains_can_be_timed(layers, sample):
    assert profile(layers, sample, repetitions=1).keys() == layers.keys()


def test_bytes_of_weights_outputs_and_saved_tensors():
    layers = {"linear": nn.Linear(3, 5), "tanh": nn.Tanh(), "twice": nn.Linear(5, 2)}
    costs = profile(layers, torch.randn(7, 3), repetitions=1)
    assert [cost.weight_bytes for cost in costs.values()] == [80, 0, 48]
    assert [cost.output_bytes for cost in costs.values()] == [140, 140, 56]
    # The input of the first, the output of the second and again as input of the third.
    assert [cost.kept_bytes for cost in costs.values()] == [84, 140, 140]


def test_a_network_in_evaluation_mode_is_measured_as_in_training():
    network = Chain([nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3)]).eval()
    costs = measure_layers(find_cut_points(network, torch.ones(2, 3)))
    assert costs["layers.1"].kept_bytes > 0
    assert not network.training


def test_steps_before_a_part_of_a_forward_are_not_counted(monkeypatch):
    clock, slept = time.perf_counter, []
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(slept))

    class Slow(Network):
        def forward(self, x):
            slept.append(0.1)
            return self.second(self.first(x))

    network, sample = Slow(first=nn.Linear(3, 3), second=nn.Linear(3, 3)), torch.ones(2, 3)
    graph = find_cut_points(network, sample)
    costs = measure_layers(graph)
    assert list(costs) == ["(start)", "second"]
    assert costs["(start)"].forward_s >= 0.1 > costs["second"].forward_s


class Keeping(Layers):
    """Network whose middle layer keeps what it has computed, as some do for pictures."""

    def forward(self, x):
        self.kept = self.second(self.first(x).relu())
        return self.third(self.kept.softmax(-1))


def test_stages_are_measured_and_copied_without_the_graphs_of_what_the_network_keeps():
    network, sample = Keeping(), torch.randn(2, 4)
    costs = measure_layers(find_cut_points(network, sample))
    assert all(cost.forward_s > 0 for cost in costs.values())
    stages = cut(network, stages=2, sample=sample)
    network.others = [network(sample)]
    copies = copy_modules(stages)
    assert copies[0].network_cut is copies[1].network_cut is not network
    copy_of_all = copies[0].network_cut
    pairs = (copy_of_all.kept, network.kept), (copy_of_all.others[0], network.others[0])
    for copied, own in pairs:
        assert torch.equal(copied, own)
        assert copied.grad_fn is None
        assert own.grad_fn is not None
