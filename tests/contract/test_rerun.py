"""A training depends on its inputs and its seed, and disturbs nothing outside.

All equalities are of bits.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from contract.small import (
    LINEARIZE,
    METHODS,
    WAITING,
    conv,
    data,
    different,
    mlp,
    sgd,
    stepped,
    tensors_of,
    train,
    values_of,
)
from hocket import Trainer
from hocket.methods import ADL, BP, DDG, DGL, FDG
from hocket.remedies import T1
from hocket.signals import Delayed, Local, Reach

every_method = pytest.mark.parametrize("name", METHODS)
every_linearization = pytest.mark.parametrize("linearize", LINEARIZE)


def noisy(stages: int) -> list[nn.Module]:
    """Stages with BatchNorm and dropout."""
    return [
        nn.Sequential(nn.BatchNorm1d(5, dtype=torch.double), stage)
        for stage in mlp(stages, dropout=0.4)
    ]


def trainer_of(modules, method, **options) -> Trainer:
    """A trainer that has not seen a batch."""
    return Trainer(modules, method=method, optimizer=partial(sgd, lr=0.001), **options)


# The same again.


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in METHODS), ("dgl-async", {"stage_speeds": (1, 0.7, 1.4)})],
    ids=str,
)
def test_equal_runs_give_equal_bits(name, options):
    """Whatever the caller's random numbers are, with dropout and BatchNorm."""
    ends = []
    for callers_seed in (1, 2):
        modules = noisy(3)
        torch.manual_seed(callers_seed)
        batches = data(mlp, 6, last=3)
        ends.append(
            train(METHODS[name](), modules, batches, epochs=2, lr=0.001, **options).state
        )
    assert not different(*ends)


@every_method
def test_another_seed_draws_other_dropout(name):
    ends = [
        train(METHODS[name](), noisy(2), data(mlp, 8), seed=seed, lr=0.001).state
        for seed in (0, 1)
    ]
    assert different(*ends)


def test_dropout_differs_between_batches_and_stages():
    masks = {}

    class Noise(nn.Dropout):
        def forward(self, values: Tensor) -> Tensor:
            output = super().forward(torch.ones(64))
            masks.setdefault(self, []).append(output)
            return values

    layers = [Noise(0.5), Noise(0.5)]
    modules = [nn.Sequential(nn.Linear(5, 5), layer).double() for layer in layers]
    train(DDG(), modules, [(x, y % 5) for x, y in data(mlp, 3)])
    drawn = [mask for layer in layers for mask in masks[layer]]
    # The first mask of a layer was drawn while its stage was being built, in evaluation mode.
    drawn = [mask for mask in drawn if mask.unique().numel() > 1]
    assert len(drawn) == 6
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


# Nothing outside is touched.


class Noise(nn.Module):
    """A layer that draws in evaluation, too."""

    def forward(self, values: Tensor) -> Tensor:
        return values + torch.randn_like(values)


@every_method
def test_the_callers_random_numbers_are_left_alone(name):
    modules = [nn.Sequential(Noise(), stage) for stage in noisy(3)]
    trainer, batches = trainer_of(modules, METHODS[name]()), data(mlp, 8)
    before = torch.get_rng_state()
    trainer.evaluate(batches[:2])
    stepped(trainer, batches)
    trainer.evaluate(batches[:2])
    trainer.finish()
    assert torch.equal(torch.get_rng_state(), before)


def drawing(function):
    """Return a function that draws a random number first."""
    return lambda *args: (torch.rand(1), function(*args))[1]


class OwnSignal(Delayed):
    backward_roots = drawing(Delayed.backward_roots)


class OwnLoss(Local):
    backward_roots = drawing(Local.backward_roots)


class OwnRemedy(T1):
    def attach(self, stage, weights):
        at_stage = super().attach(stage, weights)
        at_stage.correct_gradient = drawing(at_stage.correct_gradient)
        return at_stage


class OwnOptimizer(torch.optim.SGD):
    step = drawing(torch.optim.SGD.step)


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        (replace(FDG(), signal=OwnSignal()), sgd),
        (replace(DGL(), signal=Reach(1, OwnLoss()), backward_delay=1), sgd),
        (FDG().with_remedies(OwnRemedy()), sgd),
        (BP(), OwnOptimizer),
    ],
    ids=["signal", "loss", "remedy", "optimizer"],
)
def test_own_parts_draw_by_seed_and_batch_and_leave_the_callers_numbers(method, optimizer):
    trainer, batches = Trainer(mlp(3), method=method, optimizer=optimizer), data(mlp, 4)
    before = torch.get_rng_state()
    stepped(trainer, batches).finish()
    assert torch.equal(torch.get_rng_state(), before)


USES = {
    "prepare": lambda trainer, x, y: trainer.prepare(x),
    "step": lambda trainer, x, y: (trainer.step(x, y), trainer.finish()),
    "evaluate": lambda trainer, x, y: trainer.evaluate([(x, y)]),
}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_the_callers_batch_is_left_alone(use, stages):
    """Also by a first layer that works in place."""
    x, y = data(mlp, 1)[0]
    before = x.clone(), y.clone()
    network = nn.Sequential(nn.ReLU(inplace=True), *mlp(2))
    use(Trainer(network, stages=stages, method=FDG(), optimizer=sgd), x, y)
    assert not different([x, y], before)


@every_method
def test_the_caller_may_fill_the_same_memory_with_the_next_batch(name):
    ends = []
    for reused in (False, True):
        trainer = trainer_of(conv(3), METHODS[name]())
        for x, y in data(conv, 8):
            own = x.clone(), y.clone()
            trainer.step(*own)
            if reused:
                own[0].fill_(float("nan"))
                own[1].zero_()
        trainer.finish()
        ends.append(values_of(trainer))
    assert not different(*ends)


# Looking does not disturb.


@every_method
def test_evaluation_before_and_between_steps_changes_nothing(name):
    ends = []
    for evaluated in (False, True):
        trainer = trainer_of(noisy(3), METHODS[name]())
        if evaluated:
            trainer.evaluate(data(mlp, 2))
        for batch in data(mlp, 8):
            trainer.step(*batch)
            if evaluated:
                before = [v.clone() for v in values_of(trainer)]
                trainer.evaluate(data(mlp, 2))
                assert not different(before, values_of(trainer))
        trainer.finish()
        ends.append(values_of(trainer))
    assert not different(*ends)


@every_method
def test_a_layer_frozen_in_evaluation_mode_stays_so(name):
    modules = noisy(3)
    frozen = modules[1][0].eval()
    before = [v.clone() for v in frozen.buffers()]
    trainer = trainer_of(modules, METHODS[name]())
    for batch in data(mlp, 5):
        trainer.step(*batch)
        trainer.evaluate(data(mlp, 2))
    trainer.finish()
    off = [layer for module in modules for layer in module.modules() if not layer.training]
    assert off == [frozen]
    assert not different(before, frozen.buffers())


def test_a_wrapped_stage_is_evaluated_in_evaluation_mode():
    """A stage may bring layers that the network does not have, if they hold no weights."""
    network = nn.ModuleList(mlp(2))  # has no forward of its own
    wrapped = [nn.Sequential(layer, nn.Dropout(0.5)) for layer in network]
    scores = [
        Trainer(network, stages=stages, method=BP(), optimizer=sgd).evaluate(data(mlp, 2))
        for stages in (list(network), wrapped)
    ]
    assert scores[0] == scores[1]


# What crosses an edge.


def test_channels_last_is_kept_over_edges():
    formats = []

    class Seen(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            formats.append(values.is_contiguous(memory_format=torch.channels_last))
            return values

    modules = [nn.Sequential(Seen(), stage) for stage in conv(3)]
    trainer = trainer_of(modules, FDG(), channels_last=True)
    batches = data(conv, 4)
    assert not batches[0][0].is_contiguous(memory_format=torch.channels_last)
    stepped(trainer, batches)
    trainer.finish()
    trainer.evaluate(batches)
    assert len(formats) > 24
    assert all(formats)


@every_linearization
@pytest.mark.parametrize("method", [FDG, DDG, ADL])
def test_a_stage_may_begin_in_place(method, linearize):
    """As in the network that does the same out of place."""
    ends = []
    for inplace in (False, True):
        modules = [nn.Sequential(nn.ReLU(inplace=inplace), stage) for stage in conv(3)]
        batches = [(x.clone(), y) for x, y in data(conv, 8)]
        ends.append(train(method(linearize=linearize), modules, batches).state)
    assert not different(*ends)


@pytest.mark.parametrize(
    "name", [name for name in WAITING if METHODS[name]().first_stage_rate == 1]
)
def test_a_stage_without_weights_changes_nothing(name):
    ends = []
    for before in ([], [nn.Flatten()]):
        modules = mlp(2)
        train(METHODS[name](), [*before, *modules], data(mlp, 6))
        ends.append(tensors_of(*modules))
    assert not different(*ends)


@every_method
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_frozen_stage_passes_on_what_others_learn_from(name, stage):
    """One that is not trained, such as a backbone, at any place."""
    modules = mlp(3)
    modules[stage].requires_grad_(False)
    before = [[p.clone() for p in module.parameters()] for module in modules]
    train(METHODS[name](), modules, data(mlp, 6), lr=0.01)
    for k, module in enumerate(modules):
        assert bool(different(before[k], module.parameters())) == (k != stage)
