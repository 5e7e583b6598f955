"""Displacements from the moments of optimizers, compared with steps of the optimizers."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from hocket.remedies.displacement import displacement_of

MOMENTUM = [
    partial(SGD, lr=0.1, momentum=0.9),
    partial(SGD, lr=0.1, momentum=0.8, dampening=0.3),
    partial(SGD, lr=0.1, momentum=0.9, maximize=True),
]
ADAM = [
    partial(Adam, lr=0.1, betas=(0.8, 0.9), eps=0.01),
    partial(Adam, lr=0.1, betas=(0.8, 0.9), amsgrad=True),
    partial(AdamW, lr=0.1, betas=(0.8, 0.9), weight_decay=0.0),
]
NESTEROV = partial(SGD, lr=0.1, momentum=0.9, nesterov=True)
DECAY = partial(AdamW, lr=0.1, betas=(0.8, 0.9), weight_decay=0.5)


def optimized(build, dtype=torch.double, steps=3):
    """Return a weight after some steps with random gradients, and its optimizer."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, dtype=dtype))
    optimizer = build([weight])
    for _ in range(steps):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    return weight, optimizer


def displaced(weight, optimizer, steps, moments) -> Tensor:
    group = optimizer.param_groups[0]
    displace = displacement_of(optimizer)
    state = optimizer.state[weight]
    return displace(weight.detach(), state, group, group["lr"], steps, moments)


@pytest.mark.parametrize("dtype", [torch.double, torch.complex128])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("build", [*MOMENTUM, *ADAM, NESTEROV, DECAY], ids=str)
def test_decaying_moments_are_exact_if_later_gradients_are_zero(build, steps, dtype):
    weight, optimizer = optimized(build, dtype)
    wanted = -weight.detach()
    moved = displaced(weight, optimizer, steps, "decaying")
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert torch.allclose(moved, wanted + weight.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.double, torch.complex128])
@pytest.mark.parametrize("build", [*MOMENTUM, *ADAM], ids=str)
def test_steady_moments_repeat_the_last_change(build, dtype):
    """Of an optimizer whose step is made of nothing but its moments."""
    weight, optimizer = optimized(build, dtype)
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    moved = displaced(weight, optimizer, 3, "steady")
    assert torch.allclose(moved, 3 * (weight.detach() - before), rtol=1e-10)


def test_steady_moments_are_exact_if_they_are_stationary():
    """If each gradient is (1 - mu) v, v stays what it is (SpecTrain)."""
    weight, optimizer = optimized(MOMENTUM[0])
    gradient = 0.1 * optimizer.state[weight]["momentum_buffer"]
    wanted = -weight.detach()
    moved = displaced(weight, optimizer, 5, "steady")
    for _ in range(5):
        weight.grad = gradient.clone()
        optimizer.step()
    assert torch.allclose(moved, wanted + weight.detach(), rtol=1e-10)


def test_no_state_is_touched():
    weight, optimizer = optimized(DECAY)
    before = copy.deepcopy(optimizer.state[weight])
    for moments in ("steady", "decaying"):
        displaced(weight, optimizer, 3, moments)
    after = optimizer.state[weight]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


class OwnSGD(SGD):
    """A user's optimizer, whose steps may be others."""


@pytest.mark.parametrize("build", [OwnSGD, torch.optim.Adagrad, torch.optim.NAdam, SGD])
def test_optimizers_without_known_moments_have_no_displacement(build):
    assert displacement_of(build([torch.zeros(1)])) is None


def test_one_group_without_momentum_is_enough_to_have_none():
    groups = [{"params": [torch.zeros(1)], "momentum": m} for m in (0.9, 0.0)]
    assert displacement_of(SGD(groups)) is None
