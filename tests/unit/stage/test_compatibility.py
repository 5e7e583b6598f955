"""Stages whose late gradients would not be those asked for are refused by name."""

import copy
import random
from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from contract.small import Network, Recurrent, data, different, mlp, sgd, stepped, train
from hocket import Trainer
from hocket.errors import LinearizeError, OptionError
from hocket.methods import FDG
from hocket.stage.layers.compatibility import check_compatible
from hocket.stage.layers.module_tensors import NetworkNames

check = partial(check_compatible, names=NetworkNames())


def compiled() -> nn.Module:
    return nn.Sequential(torch.compile(nn.Linear(5, 5), backend="eager"))


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(5, 5)
    layer.compile(backend="eager")
    return nn.Sequential(layer)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(nn.Linear(5, 5))


def pruned() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.utils.prune.l1_unstructured(layer, "weight", 0.5)


DERIVED = {
    "pruned": (pruned, "Linear"),
    "instance norm": (partial(nn.InstanceNorm1d, 2, affine=True), "InstanceNorm1d"),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(5, 5)), r"Param\w+Linear"),
    "old weight norm": (old_weight_norm, "Linear"),
    "old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(5, 5)), "Linear"),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(5, 5)), r"Param\w+Linear"),
    "lstm": (partial(nn.LSTM, 5, 5), "LSTM"),
    "gru": (partial(nn.GRU, 5, 5), "GRU"),
}


@pytest.mark.parametrize(("build", "kind"), DERIVED.values(), ids=DERIVED.keys())
def test_live_refuses_layers_that_compute_with_copies_of_their_weights(build, kind):
    module = nn.Sequential(build())
    with pytest.raises(OptionError, match=rf"'0' \({kind}\) computes with copies of") as caught:
        check(module, "live", 1, 2, "fp32")
    assert "stage 2 is not compatible with linearize='live'" in str(caught.value)
    assert "use linearize='recompute' or 'stash'" in str(caught.value)
    check(module, "stash", 1, 2, "fp32")
    check(module, "recompute", 1, 2, "fp32")


@pytest.mark.parametrize("build", [compiled, compiled_in_place])
@pytest.mark.parametrize("linearize", ["stash", "live"])
def test_compiled_layers_are_refused(linearize, build):
    with pytest.raises(OptionError, match=r"layer '0' is compiled") as caught:
        check(build(), linearize, 1, 0, "fp32")
    assert "use linearize='recompute'" in str(caught.value)
    assert "'stash'" not in str(caught.value).partition("use ")[2]
    check(build(), "recompute", 1, 0, "fp32")


def test_a_trainer_checks_stages_with_delay_and_generators_before_it_trains():
    (x, _), *_ = data(mlp, 1)
    first, last = mlp(2)
    recurrent = Recurrent(nn.LSTM).double()
    method = FDG(linearize="live")
    with pytest.raises(OptionError, match="stage 0 is not compatible with linearize='live'"):
        Trainer([recurrent, last], method=method, optimizer=sgd).prepare(x)
    Trainer([first, nn.Sequential(recurrent, last)], method=method, optimizer=sgd).prepare(x)
    modules = [nn.Sequential(Drawing(random.Random(0), lambda: 1.0), *mlp(1))]
    with pytest.raises(OptionError, match="from a generator of its own"):
        Trainer(modules, optimizer=sgd, resumable=True).prepare(x)


class Drawing(nn.Module):
    """A layer that drops by random numbers of its own, or of a global generator."""

    def __init__(self, generator=None, draw=None) -> None:
        super().__init__()
        self.generator, self.draw = generator, draw

    def forward(self, values):
        return values * self.draw()


OWN = {
    "torch": torch.Generator,
    "random": random.Random,
    "numpy": numpy.random.default_rng,
    "old numpy": numpy.random.RandomState,
}


@pytest.mark.parametrize("build", OWN.values(), ids=OWN.keys())
def test_a_generator_of_a_layers_own_is_refused_where_forwards_are_repeated(build):
    module = nn.Sequential(Drawing(build()))
    said = r"layer '0' draws random numbers from a generator of its own \('generator'\)"
    with pytest.raises(OptionError, match=said) as caught:
        check(module, "recompute", 1, 0, "fp32")
    assert "stage 0 is not compatible with linearize='recompute'" in str(caught.value)
    assert "draw from the global generator of torch, numpy or random" in str(caught.value)
    with pytest.raises(OptionError, match=r"linearize='stash', resumable:"):
        check(module, "stash", 0, 0, "fp32", resumable=True)
    check(module, "recompute", 0, 0, "fp32")
    check(module, "stash", 1, 0, "fp32")


GLOBAL = {
    "torch": lambda: torch.rand(()).item(),
    "random": random.random,
    "numpy": numpy.random.rand,
}


@pytest.mark.parametrize("draw", GLOBAL.values(), ids=GLOBAL.keys())
def test_a_repeated_forward_draws_the_numbers_of_the_first(draw):
    """From all global generators, whose states afterwards are those of before."""
    drawn, batches = [], data(mlp, 6)

    def record() -> float:
        drawn.append(draw())
        return 1.0

    modules = mlp(2)
    modules[0].insert(0, Drawing(draw=record))
    trainer = Trainer(modules, method="fr", optimizer=sgd)
    trainer.prepare(batches[0][0])
    drawn.clear()
    states = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    stepped(trainer, batches)
    trainer.finish()
    assert len(drawn) == 12
    assert sorted(drawn[0::2] + drawn[1::2]) == sorted(2 * list(set(drawn)))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(numpy.random.get_state())) == states[1:]


def test_what_layers_draw_does_not_depend_on_the_state_before():
    """So processes, which have other states, train as one process does."""
    results = []
    for seed in (1, 2):
        random.seed(seed)
        numpy.random.seed(seed)
        modules = mlp(2)
        modules[1].insert(0, Drawing(draw=lambda: random.random() + numpy.random.rand()))
        results.append(train(FDG(), modules, data(mlp, 4)).state)
    assert not different(*results)


class Keeping(torch.autograd.Function):
    """A product that keeps its weight as an attribute, or as PyTorch asks for."""

    properly = False

    @classmethod
    def forward(cls, ctx, values, weight):
        ctx.weight = {"views": [weight.t()]} if not cls.properly else None
        ctx.save_for_backward(values, weight)
        return values @ weight

    @classmethod
    def backward(cls, ctx, gradient):
        values, weight = ctx.saved_tensors
        return gradient @ weight.t(), values.t() @ gradient


class KeepingProperly(Keeping):
    properly = True


class Product(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(5, 5).double()), function

    def forward(self, values):
        return torch.tanh(self.function.apply(values, self.weight))


@pytest.mark.parametrize("linearize", ["stash", "live", "recompute"])
def test_a_weight_that_a_function_keeps_as_an_attribute_is_refused_by_stash(linearize):
    first, last = mlp(2)
    method, batches = FDG(linearize=linearize), data(mlp, 3)
    train(method, [nn.Sequential(Product(KeepingProperly), first), last], batches)
    modules = [nn.Sequential(Product(Keeping), first), last]
    if linearize != "stash":
        train(method, modules, batches)
        return
    said = r"KeepingBackward keeps the weight '0.0.weight' as ctx.weight, .*save_for_backward"
    with pytest.raises(LinearizeError, match=said):
        train(method, modules, batches)


class Between(Network):
    """A network whose own forward calls a function between its modules."""

    def forward(self, values):
        kept = KeepingProperly.apply(self.first(values), self.first.weight).tanh()
        return self.last(kept) if hasattr(self, "last") else kept


@pytest.mark.parametrize("linearize", ["stash", "live"])
def test_a_function_may_keep_weights_between_the_modules_of_a_cut_network(linearize):
    network = Between(first=nn.Linear(5, 5), last=nn.Linear(5, 3)).double()
    given = copy.deepcopy([Between(first=network.first), network.last])
    for each, stages in ((network, 2), (given, None)):
        method = FDG(linearize=linearize)
        stepped(Trainer(each, stages=stages, method=method, optimizer=sgd), data(mlp, 5))
    assert not different(nn.ModuleList(given).parameters(), network.parameters())
