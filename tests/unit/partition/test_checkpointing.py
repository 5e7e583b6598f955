"""Activation checkpointing, Python's random numbers and compiled networks under a cut."""

import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contract.small import Network, sgd, stepped
from hocket import BP, FDG, FR, Plan, Trainer, cut
from hocket.errors import CutError
from hocket.partition.cut_points import find_cut_points
from unit.partition.networks import Layers, assert_same


class Block(nn.Module):
    """Residual block that may checkpoint its inner part."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def inner(self, x):
        return x + self.second(self.first(x).relu())

    def forward(self, x):
        if self.reentrant is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Checkpointed(nn.Module):
    """Network that checkpoints inside its blocks or around them."""

    def __init__(self, inside=None, around=None):
        super().__init__()
        self.around = around
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(Block(inside) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.around is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.around)
        return self.head(x)


INPUTS, TARGETS = torch.ones(3, 4), torch.tensor([0, 1, 2])


def train(network, method):
    trainer = Trainer(network, stages=Plan(("blocks.2",)), method=method, optimizer=sgd)
    stepped(trainer, [(INPUTS, TARGETS)] * 4).finish()
    return trainer.state_dict()


@pytest.mark.parametrize(
    "way", [{"inside": False}, {"inside": True}, {"around": False}], ids=str
)
@pytest.mark.parametrize(
    "method", [BP(), FR(), FDG(linearize="recompute")], ids=lambda m: m.name
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointed_networks_train_as_those_without(way, method):
    network, plain = Checkpointed(**way), Checkpointed()
    plain.load_state_dict(network.state_dict())
    expected = train(plain, method)
    assert all(torch.equal(v, expected[k]) for k, v in train(network, method).items())


def test_no_stage_begins_inside_a_checkpoint_but_where_it_does():
    graph = find_cut_points(Checkpointed(around=False), INPUTS)
    names = [point.name for point in graph.cut_points]
    assert names == ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]
    assert set(graph.refused.values()) == {
        ("activation checkpointing repeats what is around it; cut before that",)
    }
    with pytest.raises(CutError, match="use use_reentrant=False, or call it inside a module"):
        cut(Checkpointed(around=True), stages=Plan(("blocks.2",)), sample=INPUTS)


class Drawing(nn.Module):
    """Network that leaves out layers at random, as numbers of Python or NumPy say."""

    def __init__(self, inside, draw):
        super().__init__()
        self.inside, self.draw = inside, draw
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        if inside:
            for layer in self.layers:
                layer.forward = lambda x, w=layer: x if draw() < 0.5 else F.linear(x, w.weight)

    def forward(self, x):
        for layer in self.layers[:-1]:
            if self.inside or self.draw() < 2.0:
                x = layer(x)
        return self.layers[-1](x)


GENERATORS = pytest.mark.parametrize("draw", [random.random, numpy.random.random])


@GENERATORS
@pytest.mark.parametrize("stages", [Plan(("layers.3",)), 2], ids=["plan", "balanced"])
def test_random_numbers_of_the_host_may_be_drawn_inside_modules(draw, stages):
    network = Drawing(inside=True, draw=draw)
    state, numpy_ = random.getstate(), numpy.random.get_state()
    stages = cut(network, stages=stages, sample=INPUTS)
    assert random.getstate() == state
    assert numpy.array_equal(numpy.random.get_state()[1], numpy_[1])
    assert numpy.random.get_state()[2:] == numpy_[2:]
    actual = nn.Sequential(*stages)(INPUTS)
    random.setstate(state)
    numpy.random.set_state(numpy_)
    assert torch.equal(actual, network(INPUTS))


@GENERATORS
@pytest.mark.parametrize("layer", ["layers.1", "layers.3"])
def test_random_numbers_of_the_host_between_modules_are_refused(draw, layer):
    with pytest.raises(CutError, match="numbers of Python's random module or of NumPy are"):
        cut(Drawing(inside=False, draw=draw), stages=Plan((layer,)), sample=INPUTS)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, context):
        return torch.tanh(self.linear(x) * context.gate)


@pytest.mark.parametrize("layer", ["b", "c"])
@pytest.mark.parametrize("grad", [True, False])
def test_values_in_objects_cross_a_cut_with_and_without_gradients(grad, layer):
    class Contexts(Network):
        def forward(self, x):
            context = SimpleNamespace(gate=torch.sigmoid(self.a(x)))
            return self.c(self.b(x, context), context)

    network = Contexts(a=nn.Linear(4, 4), b=Gated(), c=Gated())
    stages = cut(network, stages=Plan((layer,)), sample=INPUTS)
    with torch.set_grad_enabled(grad):
        assert torch.equal(nn.Sequential(*stages)(INPUTS), network(INPUTS))


@pytest.mark.parametrize("kept_by", ["checkpoint", "function"])
def test_values_made_without_gradients_are_kept_behind_a_cut(kept_by):
    class Scaled(Layers):
        def forward(self, x):
            x = self.first(x)
            with torch.no_grad():
                scale = x.abs().amax(dim=1, keepdim=True)
            y = self.second(x)
            if kept_by == "function":
                return self.third(Scale.apply(y, scale))
            return self.third(checkpoint(torch.mul, y, scale, use_reentrant=False))

    assert_same(Scaled(), Plan(("second",)), INPUTS, INPUTS)


class Scale(torch.autograd.Function):
    """Product whose backward is written by hand."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        (scale,) = ctx.saved_tensors
        return gradient * scale, None


@pytest.mark.parametrize(("part", "place"), [("", "at the top"), ("blocks.1", "'blocks.1'")])
def test_compiled_modules_are_refused_by_name(part, place):
    network = Checkpointed()
    module = network.get_submodule(part)
    module._compiled_call_impl = module.forward  # as its compile() does, without the compiler
    with pytest.raises(CutError, match=f"the module {place} is compiled; .*Sequential"):
        cut(network, stages=2, sample=INPUTS)
