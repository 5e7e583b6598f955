"""Whoever wants to see a step sees it, although wrappers of PyTorch are left out."""

import functools
import warnings

import pytest
import torch
from torch import nn, optim
from torch.optim import optimizer as torch_optimizer

from hocket.stage.update.bare_step import bare_step


@pytest.fixture
def weight():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return weight


@pytest.fixture
def optimizer(weight):
    return optim.SGD([weight], lr=0.1)


def test_the_wrappers_are_left_out(optimizer, weight):
    step = bare_step(optimizer)
    assert isinstance(step, functools.partial)
    step()
    assert weight.tolist() == pytest.approx([0.9] * 3)


@pytest.mark.parametrize("when", ["pre", "post"])
@pytest.mark.parametrize("of_all", [False, True])
def test_hooks_that_come_later_are_called(optimizer, when, of_all):
    bare_step(optimizer)()
    called = []
    owner = torch_optimizer if of_all else optimizer
    register = getattr(owner, f"register_{'optimizer_' if of_all else ''}step_{when}_hook")
    handle = register(lambda *arguments: called.append(arguments[0]))
    bare_step(optimizer)()
    handle.remove()
    bare_step(optimizer)()
    assert called == [optimizer]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch_optimizer, "_global_optimizer_post_hooks"),
        (torch._C._autograd, "_profiler_enabled"),
    ],
)
def test_under_a_pytorch_of_other_tables_the_step_is_whole(optimizer, owner, name, monkeypatch):
    monkeypatch.delattr(owner, name)
    assert not isinstance(bare_step(optimizer), functools.partial)


def test_a_profiler_sees_the_name_of_a_step(optimizer):
    with torch.autograd.profiler.profile() as profile:
        bare_step(optimizer)()
    assert "Optimizer.step#SGD.step" in [event.key for event in profile.key_averages()]


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_wrapper_of_the_user_is_called(optimizer, weight, scheduled):
    """Also if it has all attributes of the one that it wraps."""
    if scheduled:
        optim.lr_scheduler.StepLR(optimizer, 1)
    called, inner = [], optimizer.step

    @functools.wraps(getattr(inner, "__func__", inner))
    def counted():
        called.append(True)
        inner()

    optimizer.step = counted
    bare_step(optimizer)()
    assert called == [True]
    assert weight.tolist() == pytest.approx([0.9] * 3)


def test_a_scheduler_does_not_miss_its_wrapper(optimizer):
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer._opt_called = True  # as an updater notes in advance
    step = bare_step(optimizer)
    assert isinstance(step, functools.partial)
    step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert scheduler.get_last_lr() == [0.05]
