"""A parameter that is used on both sides of a cut has one owner, and travels with batches."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from contract.small import Network, back_propagate, sgd, stepped, weights_of
from hocket import Plan, Trainer, cut, untie

IDS, TARGETS = torch.tensor([[1, 2], [4, 0], [3, 3]]), torch.tensor([[2, 4], [0, 1], [3, 1]])
BATCHES = [((IDS + shift) % 5, (TARGETS + shift) % 5) for shift in range(8)]


class Tied(nn.Module):
    """Embedding and head with one weight, and two layers in between."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.third(self.second(self.embed(ids)).tanh()).tanh())


class ByHand(Network):
    """A stage of `Tied` that receives the weight and passes it on, written by hand."""

    def forward(self, received):
        if "embed" in self._modules:
            return self.embed(received), self.embed.weight.clone()
        h, weight = received
        if "second" in self._modules:
            return self.second(h).tanh(), weight
        return F.linear(self.third(h).tanh(), weight, self.bias)


class Root(nn.Module):
    """Parameter of the network itself that its forward reads early and uses late."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))
        self.embed = nn.Embedding(5, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 5)

    def forward(self, ids):
        scale = self.scale
        h = self.embed(ids) * scale
        return self.third(self.second(h) * scale + self.scale)


class Loop(nn.Module):
    """Recurrent cell that is called three times before a layer and twice after it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.cell = nn.GRUCell(4, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 5)

    def forward(self, ids):
        x = self.embed(ids).flatten(0, 1)
        h = torch.zeros_like(x)
        for _ in range(3):
            h = self.cell(x, h)
        h = self.second(h)
        for _ in range(2):
            h = self.cell(x, h)
        return self.third(h).unflatten(0, ids.shape)


def build(network):
    torch.manual_seed(0)
    return network()


def train(stages, network, method):
    trainer = Trainer(network, stages=stages, method=method, optimizer=sgd)
    stepped(trainer, BATCHES).finish()
    return weights_of(network)


@pytest.mark.parametrize("kind", [Tied, Root, Loop])
def test_stages_with_a_common_weight_learn_by_bp_as_the_network_does(kind):
    """Close in float64: the gradients of a weight's uses are added in another order."""
    network = build(kind).double()
    plain = copy.deepcopy(network)
    back_propagate([plain], BATCHES)
    trained = train(Plan(("second", "third")), network, "bp")
    torch.testing.assert_close(trained, weights_of(plain), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    ["fdg", "fdg:linearize=live", "fdg:linearize=recompute", "adl:accumulate=2", "dsp"],
)
def test_a_tied_weight_is_an_activation_that_every_batch_carries(method):
    tied = build(Tied)
    by_hand = copy.deepcopy(tied)
    names = ("embed", "second", "third")
    stages = [ByHand(**{name: by_hand.get_submodule(name)}) for name in names]
    stages[2].bias = by_hand.head.bias
    expected = train(stages, by_hand, method)
    actual = train(Plan(("second", "third")), tied, method)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert not torch.equal(actual["embed.weight"], build(Tied).embed.weight)


def test_the_stage_of_the_first_use_owns_a_tied_weight_and_saves_both_names():
    """A stage that fails leaves the network as it was."""
    network = build(Tied)
    first, last = cut(network, stages=Plan(("second",)), sample=IDS)
    assert [name for name, _ in first.named_parameters()] == ["embed.weight"]
    assert set(first.state_dict()) == {"embed.weight", "head.weight"}
    assert "head.weight" not in dict(last.named_parameters())
    assert set(first.state_dict()) | set(last.state_dict()) == set(network.state_dict())
    assert network.head.weight is network.embed.weight
    h, weight = first(IDS)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        last((h, weight[:, :2]))
    assert network.head.weight is network.embed.weight
    assert isinstance(network.head.weight, nn.Parameter)


def test_untied_weights_are_equal_at_first_and_trained_apart():
    network = build(Tied)
    network.embed.weight.requires_grad_(False)
    assert untie(network) == ["head.weight"]
    assert untie(network) == []
    assert untie(Network(a=network.third, b=network.third)) == []  # one module of two names
    assert torch.equal(network.head.weight, network.embed.weight)
    assert network.head.weight is not network.embed.weight
    assert not network.head.weight.requires_grad
    network = build(Tied)
    untie(network)
    trained = train(Plan(("second",)), network, "fdg")
    assert not torch.equal(trained["head.weight"], trained["embed.weight"])
