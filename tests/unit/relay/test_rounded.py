"""What is rounded for the wire, and what is not."""

import torch

from hocket.relay import wire
from hocket.relay.memory import Edge
from hocket.relay.packet import Activation, Gradient
from hocket.relay.rounded import Rounded, rounded


def test_floating_point_values_are_rounded_and_targets_are_not():
    edge = Edge("a", "b")
    values, targets = torch.tensor([1.001]), torch.tensor([1.001])
    sent = Activation(0, 0, (values, torch.tensor([7])), (True, False), targets)
    Rounded(edge.upper()).send(sent)
    got = Rounded(edge.lower()).receive(0)
    assert got.values[0].dtype == torch.float32
    assert got.values[0].item() == 1.0
    assert torch.equal(got.values[1], torch.tensor([7]))
    assert torch.equal(got.targets, targets)


def test_gradients_are_rounded_and_none_stays_none():
    edge = Edge("a", "b")
    Rounded(edge.lower()).send(Gradient(3, (torch.tensor([1.001], dtype=torch.float64), None)))
    first, second = Rounded(edge.upper()).receive(3).values
    assert first.dtype == torch.float64
    assert first.item() == 1.0
    assert second is None


def test_what_was_rounded_loses_nothing_on_a_narrow_wire():
    values = rounded(torch.randn(50))
    narrow = wire.narrowed(values)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.float(), values)


def test_what_was_not_rounded_is_not_narrowed():
    for tensor in (torch.tensor([1.001]), torch.tensor([1], dtype=torch.int64)):
        assert wire.narrowed(tensor) is tensor
