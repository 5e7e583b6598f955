"""Functions for optimizers get what they name, and are refused where that is impossible."""

from functools import partial

import pytest
import torch
from torch import nn, optim

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import DGL


def prepared(network, optimizer, **options):
    trainer = Trainer(network, optimizer=optimizer, **options)
    trainer.prepare(data(mlp, 1)[0][0])
    return trainer


def test_a_function_with_an_argument_stage_gets_its_number():
    def optimizer(params, stage):
        return sgd(params, lr=0.1 * (stage + 1))

    trainer = prepared(mlp(3), optimizer)
    lrs = [stage.updater.optimizer.param_groups[0]["lr"] for stage in trainer.stages]
    assert lrs == [0.1, 0.2, 0.1 * 3]


@pytest.mark.parametrize("last", [2, 3])
def test_a_function_with_an_argument_stages_gets_how_many_there_are(last):
    def optimizer(params, stages, *, stage):
        return sgd(params, lr=0.1 * (stages - stage))

    trainer = prepared(mlp(last), optimizer)
    lrs = [stage.updater.optimizer.param_groups[0]["lr"] for stage in trainer.stages]
    assert lrs == [0.1 * (last - k) for k in range(last)]


class Named(nn.Module):
    """A network that is no sequence, so that stages are parts of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, values):
        hidden = self.norm(torch.tanh(self.first(values)))
        return self.last(torch.tanh(hidden))


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double(), 2),
        (lambda: Named().double(), 2),
        (lambda: nn.Sequential(*mlp(3)), 3),
    ],
    ids=["sequence", "parts", "nested"],
)
def test_names_of_parameters_are_those_of_the_whole_network(build, stages):
    network, seen = build(), {}

    def optimizer(*, named_parameters, stage):
        seen.update(named_parameters)
        return sgd([p for _, p in named_parameters])

    prepared(network, optimizer, stages=stages)
    assert seen == dict(network.named_parameters())
    assert all(seen[name] is p for name, p in network.named_parameters())


def test_weights_of_heads_are_named_after_their_stage():
    names = []

    def optimizer(named_parameters):
        names.extend(name for name, _ in named_parameters)
        return sgd([p for _, p in named_parameters])

    prepared(mlp(2), optimizer, method=DGL(head="mlp", depth=0))
    assert [name for name in names if name.startswith("signal of stage 0: ")]


def test_weight_decay_on_matrices_only():
    """Bit-equal to a plain loop with the same groups, as the page on own networks has it."""

    def optimizer(named_parameters):
        groups = {True: [], False: []}
        for name, parameter in named_parameters:
            groups[name.endswith("weight") and parameter.dim() > 1].append(parameter)
        return optim.SGD(
            [{"params": groups[True], "weight_decay": 0.5}, {"params": groups[False]}], lr=0.1
        )

    network, plain = nn.Sequential(*mlp(2)), nn.Sequential(*mlp(2))
    trainer = Trainer(network, stages=2, method="bp", optimizer=optimizer)
    alone = optimizer(list(plain.named_parameters()))
    for x, y in data(mlp, 3):
        trainer.step(x, y)
        alone.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        alone.step()
    pairs = zip(network.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_arguments_that_are_given_already_are_not_given_again():
    def optimizer(params, stage):
        return sgd(params, lr=stage)

    trainer = prepared(mlp(2), partial(optimizer, stage=0.3))
    assert trainer.stages[1].updater.optimizer.param_groups[0]["lr"] == 0.3


def test_a_class_that_needs_parameters_only_is_a_function_too():
    trainer = prepared(mlp(2), optim.AdamW)
    assert type(trainer.stages[0].updater.optimizer) is optim.AdamW


class NeedsRate(optim.SGD):
    def __init__(self, params, rate) -> None:
        super().__init__(params, rate)


NO_FACTORIES = {
    "optimizer": (lambda: sgd([nn.Parameter(torch.ones(1))]), "optimizer is an object of SGD"),
    "list": (lambda: [sgd, sgd], "optimizer is an object of list"),
    "text": (lambda: "SGD", "optimizer is an object of str"),
    "no argument": (lambda: lambda: None, "optimizer cannot be called for a stage: too many"),
    "one more": (lambda: NeedsRate, "a stage: missing a required argument: 'rate'"),
}


@pytest.mark.parametrize(("build", "said"), NO_FACTORIES.values(), ids=NO_FACTORIES.keys())
def test_what_cannot_build_an_optimizer_is_refused_with_an_example(build, said):
    with pytest.raises(OptionError) as caught:
        Trainer(mlp(2), optimizer=build())
    assert said in str(caught.value)
    assert "lambda params: torch.optim.SGD(params, lr=0.1)" in str(caught.value)


def test_a_scheduler_that_is_built_already_is_refused():
    scheduler = optim.lr_scheduler.StepLR(sgd([nn.Parameter(torch.ones(1))]), 1)
    with pytest.raises(OptionError, match=r"scheduler is an object of StepLR; .*lambda opt"):
        Trainer(mlp(2), optimizer=sgd, scheduler=scheduler)


def test_something_else_than_a_scheduler_is_refused():
    with pytest.raises(OptionError, match="the scheduler of stage 0 is a SGD; wanted one of"):
        prepared(mlp(2), sgd, scheduler=lambda optimizer: optimizer)


class Perturbing(optim.SGD):
    """As implementations of SAM do: the closure may be left out, and is asked for then."""

    def step(self, closure=None):
        assert closure is not None, "it requires closure, but it was not provided"


class Adding(optim.SGD):
    def step(self, closure=None):
        raise ZeroDivisionError("mine")


class Unscheduled(optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})


UNFIT = {
    "no learning rate": (
        Unscheduled,
        "the optimizer of stage 0, Unscheduled, has weights without a rate 'lr'",
    ),
    "no optimizer": (
        lambda params: None,
        "the optimizer of stage 0 is a NoneType; wanted a to",
    ),
    "empty": (lambda params: sgd([]), "of stage 0 cannot be built: optimizer got an empty"),
    "closure": (optim.LBFGS, "the optimizer of stage 0, LBFGS, calls the network again"),
    "another": (
        lambda params: sgd([*params, nn.Parameter(torch.ones(1))]),
        "has 1 weights that are not in this stage",
    ),
}


@pytest.mark.parametrize(("optimizer", "said"), UNFIT.values(), ids=UNFIT.keys())
def test_an_optimizer_that_does_not_fit_its_stage_is_refused(optimizer, said):
    with pytest.raises(OptionError) as caught:
        prepared(mlp(2), optimizer)
    assert said in str(caught.value)


def test_a_closure_that_is_missed_in_a_step_is_told_before_anything_moves():
    trainer = prepared(modules := mlp(1), partial(Perturbing, lr=0.1))
    before = [p.clone() for p in modules[0].parameters()]
    with pytest.raises(OptionError, match="Perturbing calls the network again in its step"):
        trainer.step(*data(mlp, 1)[0])
    assert all(map(torch.equal, before, modules[0].parameters()))


def test_other_errors_of_a_step_are_the_optimizers_own():
    with pytest.raises(ZeroDivisionError, match="mine"):
        prepared(mlp(1), partial(Adding, lr=0.1)).step(*data(mlp, 1)[0])
