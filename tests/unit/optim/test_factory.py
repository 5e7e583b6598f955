"""Functions for optimizers get what they name, and are refused where that is impossible."""

from functools import partial

import pytest
import torch
from torch import nn, optim

from contract.small import Network, data, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError


def prepared(network, optimizer, **options):
    trainer = Trainer(network, optimizer=optimizer, **options)
    trainer.prepare(data(mlp, 1)[0][0])
    return trainer


def of_stage(params, stage):
    return sgd(params, lr=0.1 * (stage + 1))


def of_stages(params, stages, *, stage):
    return sgd(params, lr=0.1 * (stages - stage))


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        (of_stage, [0.1, 0.2, 0.1 * 3]),
        (of_stages, [0.1 * 3, 0.2, 0.1]),
        (of_stages, [0.2, 0.1]),
        (partial(of_stage, stage=2), [0.1 * 3] * 2),
        (optim.AdamW, [0.001] * 2),
    ],
    ids=["stage", "3 stages", "2 stages", "given already", "class"],
)
def test_a_function_gets_the_arguments_that_it_names(optimizer, rates):
    trainer = prepared(mlp(len(rates)), optimizer)
    groups = [stage.updater.optimizer.param_groups[0] for stage in trainer.stages]
    assert [group["lr"] for group in groups] == rates


class Named(Network):
    """A network that is no sequence, so that stages are parts of its forward."""

    def forward(self, values):
        hidden = self.norm(torch.tanh(self.a(values)))
        return self.b(torch.tanh(hidden))


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double(), 2),
        (lambda: Named(a=nn.Linear(5, 5), norm=nn.LayerNorm(5), b=nn.Linear(5, 3)).double(), 2),
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


WEIGHT = nn.Parameter(torch.ones(1))
BUILT = sgd([WEIGHT])


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (BUILT, "optimizer is an object of SGD"),
        ([sgd, sgd], "optimizer is an object of list"),
        ("SGD", "optimizer is an object of str"),
        (lambda: None, "optimizer cannot be called for a stage: too many"),
        (lambda params, rate: None, "a stage: missing a required argument: 'rate'"),
    ],
    ids=["optimizer", "list", "text", "no argument", "one more"],
)
def test_what_cannot_build_an_optimizer_is_refused_with_an_example(optimizer, said):
    with pytest.raises(OptionError, match=said) as caught:
        Trainer(mlp(2), optimizer=optimizer)
    assert "lambda params: torch.optim.SGD(params, lr=0.1)" in str(caught.value)


class Perturbing(optim.SGD):
    """As implementations of SAM do: the closure may be left out, and is asked for then."""

    def step(self, closure=None):
        assert closure is not None, "it requires closure, but it was not provided"


class Adding(optim.SGD):
    def step(self, closure=None):
        raise ZeroDivisionError("mine")


class Unscheduled(optim.Optimizer):
    """Optimizer that finds its rate itself, as Adafactor of transformers does."""

    def __init__(self, defaults, params):
        super().__init__(params, defaults)


@pytest.mark.parametrize(
    ("optimizer", "options", "said"),
    [
        (partial(Unscheduled, {}), {}, "of stage 0, Unscheduled, .* without a rate 'lr'"),
        (partial(Unscheduled, {"lr": None}), {}, "of stage 0, Unscheduled, .* a rate 'lr'"),
        (lambda params: None, {}, "the optimizer of stage 0 is a NoneType"),
        (lambda params: sgd([]), {}, "of stage 0 cannot be built: optimizer got an empty"),
        (optim.LBFGS, {}, "the optimizer of stage 0, LBFGS, calls the network again"),
        (lambda weights: sgd([*weights, WEIGHT]), {}, "has 1 weights that are not in this"),
        (sgd, {"scheduler": optim.lr_scheduler.StepLR(BUILT, 1)}, "is an object of StepLR"),
        (
            sgd,
            {"scheduler": lambda optimizer: optimizer, "plateau_metric": "test_error"},
            "the scheduler of stage 0 is a SGD",
        ),
        (
            sgd,
            {"scheduler": lambda optimizer: optim.lr_scheduler.StepLR(BUILT, 1)},
            "of stage 0, a StepLR, changes the rates of another optimizer",
        ),
        (
            optim.Adagrad,
            {"scheduler": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9)},
            "the scheduler of stage 0 cannot be built",
        ),
    ],
)
def test_what_does_not_fit_its_stage_is_refused(optimizer, options, said):
    with pytest.raises(OptionError, match=said):
        prepared(mlp(2), optimizer, **options)


def test_a_closure_that_is_missed_in_a_step_is_told_before_anything_moves():
    """Other errors of a step are the optimizer's own."""
    trainer = prepared(modules := mlp(1), partial(Perturbing, lr=0.1))
    before = [p.clone() for p in modules[0].parameters()]
    with pytest.raises(OptionError, match="Perturbing calls the network again in its step"):
        trainer.step(*data(mlp, 1)[0])
    assert all(map(torch.equal, before, modules[0].parameters()))
    with pytest.raises(ZeroDivisionError, match="mine"):
        prepared(mlp(1), partial(Adding, lr=0.1)).step(*data(mlp, 1)[0])
