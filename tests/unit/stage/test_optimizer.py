"""Gradients become updates at the learning rate of their own epoch; nothing else moves."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, ReduceLROnPlateau

from contract.small import data, different, mlp, sgd, train
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import ADL, BP, DDG, FDG, FR, METHODS
from hocket.stage.accumulate import GradientAccumulator, total_norm
from hocket.stage.optimizer import Updater


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.double))


def backward(p: nn.Parameter, *gradient: float) -> None:
    p.grad = torch.tensor(gradient, dtype=torch.double)


# GradientAccumulator.


@pytest.mark.parametrize(("reduce", "wanted"), [("sum", [9.0, 12.0]), ("mean", [3.0, 4.0])])
def test_gradients_are_summed_or_averaged(reduce, wanted):
    p = parameter(0.0, 0.0)
    gradients = GradientAccumulator([p], reduce)
    for a in (1.0, 3.0, 5.0):
        backward(p, a, a + 1)
        (seen,) = gradients.add()
        assert seen.tolist() == [a, a + 1]
        assert p.grad is None
    assert gradients.count == 3
    gradients.reduce()
    assert p.grad.tolist() == wanted
    assert gradients.count == 0


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_that_were_returned_do_not_change_later(reduce):
    p = parameter(0.0)
    gradients = GradientAccumulator([p], reduce)
    seen = []
    for a in (1.0, 3.0):
        backward(p, a)
        seen += gradients.add()
    gradients.reduce()
    assert [g.item() for g in seen] == [1.0, 3.0]


def test_a_weight_without_gradient_has_none():
    p, q = parameter(0.0), parameter(0.0)
    gradients = GradientAccumulator([p, q], "mean")
    for late in (False, True):
        backward(p, 2.0)
        if late:
            backward(q, 4.0)
        gradients.add()
    gradients.reduce()
    assert (p.grad.item(), q.grad.item()) == (2.0, 2.0)
    q.grad = None  # as an optimizer does after its step
    backward(p, 2.0)
    gradients.add()
    gradients.reduce()
    assert q.grad is None


def test_total_norm_is_euclidean_over_all():
    assert total_norm([torch.tensor([3.0]), None, torch.tensor([[4.0]])]).item() == 5.0
    assert total_norm([None]).item() == 0.0


# Updater.


def test_an_updater_counts_its_updates():
    p = parameter(1.0)
    updater = Updater([p], partial(torch.optim.SGD, lr=0.5))
    for version in range(3):
        assert updater.version == version
        backward(p, 1.0)
        updater.accumulate()
        updater.update(epoch=0)
    assert p.item() == -0.5


def test_a_stage_without_weights_counts_updates():
    updater = Updater([], sgd, partial(MultiStepLR, milestones=[1]))
    updater.accumulate()
    assert updater.update(epoch=3) == 0.0
    assert updater.version == 1


def test_plateaus_are_refused():
    with pytest.raises(OptionError, match="ReduceLROnPlateau needs a validation metric"):
        Updater([parameter(0.0)], sgd, ReduceLROnPlateau)
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, scheduler=ReduceLROnPlateau)
    with pytest.raises(OptionError, match="use a scheduler that counts epochs or updates"):
        trainer.prepare(data(mlp, 1)[0][0])


def test_without_gradient_nothing_moves():
    """No weight decay, no momentum: a stage does not change before its first gradient."""
    modules, moved = mlp(3), []
    before = [[p.clone() for p in module.parameters()] for module in modules]

    def watch(event, stage):
        if event.action.kind == "U":
            moved.append(stage.index)
        for k, module in enumerate(modules):
            assert bool(different(before[k], module.parameters())) == (k in moved)

    train(FDG(), modules, data(mlp, 8), watch=watch, weight_decay=0.1)
    assert moved[0] == 2


class RateRecorder:
    """Optimizer factory that records the learning rate of each step."""

    def __init__(self, **options) -> None:
        self.used = []
        self.options = options

    def __call__(self, params):
        optimizer = sgd(params, **self.options)
        lrs = []
        self.used.append(lrs)
        optimizer.register_step_pre_hook(lambda opt, *_: lrs.append(opt.param_groups[0]["lr"]))
        return optimizer


WAITING_LONG = {
    "bp": BP(),
    "ddg": DDG(),
    "fdg": FDG(),
    "fdg-drained": FDG(epoch_end="drain"),
    "adl": ADL(accumulate=2),
    "adl-over-epochs": ADL(accumulate=3),
    "dgl": METHODS["dgl"](),
    "far": DDG(forward_delay=3, backward_delay=3),
}


@pytest.mark.parametrize("method", WAITING_LONG.values(), ids=WAITING_LONG.keys())
def test_the_rate_of_an_update_is_that_of_its_batchs_epoch(method):
    """At every stage, and no matter when the gradient comes back."""
    schedule = [0.1, 0.1 * 0.5, 0.1 * 0.5, 0.1 * 0.5 * 0.5]
    rates = RateRecorder(lr=0.1)
    trained = train(
        method,
        mlp(3),
        data(mlp, 4),
        epochs=4,
        optimizer=rates,
        scheduler=partial(MultiStepLR, milestones=[1, 3], gamma=0.5),
    )
    for k in range(3):
        updates = trained.of("U", k)
        wanted = [schedule[e.action.batch // 4] for e in updates]
        assert [e.report.epoch for e in updates] == [e.action.batch // 4 for e in updates]
        assert rates.used[k] == wanted
        assert [e.report.lr for e in updates] == wanted


def test_a_scheduler_may_count_updates():
    rates = RateRecorder(lr=0.1)
    trainer = Trainer(
        mlp(2),
        method=ADL(accumulate=2),
        optimizer=rates,
        scheduler=partial(ExponentialLR, gamma=0.5),
        scheduler_unit="update",
    )
    trainer.fit(data(mlp, 5), epochs=2, progress=False)
    for used in rates.used:
        assert used == [0.1 * 0.5**n for n in range(5)]


def test_the_first_stage_may_have_a_rate_of_its_own():
    rates = RateRecorder(lr=0.1)
    scheduler = partial(MultiStepLR, milestones=[1], gamma=0.5)
    method = FR(first_stage_rate=2.0)
    train(method, mlp(3), data(mlp, 2), epochs=2, optimizer=rates, scheduler=scheduler)
    assert rates.used == [[0.2, 0.2, 0.1, 0.1], [0.1, 0.1, 0.05, 0.05], [0.1, 0.1, 0.05, 0.05]]


def test_synthesizers_follow_the_schedule_too():
    """They have the same kind of optimizer and scheduler as the layers."""
    rates = RateRecorder(lr=0.01)
    train(
        METHODS["dni"](),
        mlp(2),
        data(mlp, 2),
        epochs=2,
        optimizer=rates,
        scheduler=partial(MultiStepLR, milestones=[1], gamma=0.5),
    )
    assert all(used == [0.01, 0.01, 0.005, 0.005] for used in rates.used)


def test_a_first_update_in_a_later_epoch_does_not_warn():
    """Warnings are errors here; torch warns of schedulers that step before any update."""
    weight = nn.Parameter(torch.ones(1))
    updater = Updater([weight], sgd, partial(ExponentialLR, gamma=0.5))
    weight.grad = torch.ones(1)
    updater.accumulate()
    assert updater.update(epoch=2) == pytest.approx(0.1 / 4)
