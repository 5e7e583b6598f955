"""Displacements from the moments of optimizers, compared with steps of the optimizers."""

from functools import partial

import pytest
import torch
from lion_pytorch import Lion
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam

from hocket.optim.muon import MuonAdamW
from hocket.remedies import Predict, StageInfo, Weights
from hocket.remedies.displacement import StepsAhead, displacements_of, has_momentum

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
NADAM = [
    partial(NAdam, lr=0.1, betas=(0.8, 0.9), momentum_decay=0.1, eps=0.01),
    partial(NAdam, lr=0.1, betas=(0.8, 0.9), weight_decay=0.5, decoupled_weight_decay=True),
]
MUON = [
    # Halved, a momentum is orthogonalized to the same bits, and otherwise only to those of
    # bfloat16, in which PyTorch's Muon does it.
    partial(Muon, lr=0.1, momentum=0.5, weight_decay=0.0),
    partial(Muon, lr=0.1, momentum=0.5, weight_decay=0.5, adjust_lr_fn="match_rms_adamw"),
    partial(Muon, lr=0.1, momentum=0.5, weight_decay=0.0, nesterov=False, ns_steps=3),
]
LION = [
    partial(Lion, lr=0.1, betas=(0.8, 0.9)),
    partial(Lion, lr=0.1, betas=(0.8, 0.9), weight_decay=0.5),
]


def label(value):
    """Part of a test's id: an optimizer with its options."""
    if not isinstance(value, partial):
        return str(value)
    options = (f"{name}={option}" for name, option in value.keywords.items() if name != "lr")
    return " ".join([value.func.__name__, *options])


def optimized(build, dtype=torch.double, steps=3):
    """Return a weight after some steps with random gradients, and its optimizer."""
    torch.manual_seed(0)
    shape = (5, 3) if build.func is Muon else (5,)
    weight = nn.Parameter(torch.randn(shape, dtype=dtype))
    optimizer = build([weight])
    for _ in range(steps):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    return weight, optimizer


def displaced(weight, optimizer, steps, moments) -> Tensor:
    group = optimizer.param_groups[0]
    [displace] = displacements_of(optimizer)
    state = optimizer.state[weight]
    return displace(StepsAhead(weight.detach(), state, group, group["lr"], steps, moments))


def moved(weight, optimizer, steps, gradient) -> Tensor:
    """Make some steps with one gradient, and return the change of the weight."""
    before = weight.detach().clone()
    for _ in range(steps):
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach() - before


def in_each_dtype(*builds):
    """Parametrize by optimizers and the types of weights that they take."""
    real = [(build, torch.double) for build in builds]
    both = [(b, torch.complex128) for b in builds if b.func not in (Muon, Lion)]
    return pytest.mark.parametrize(("build", "dtype"), real + both, ids=label)


@pytest.mark.parametrize("steps", [1, 2, 7])
@in_each_dtype(*MOMENTUM, *ADAM, NESTEROV, DECAY, *NADAM, *MUON, *LION)
def test_decaying_moments_are_exact_if_later_gradients_are_zero(build, steps, dtype):
    weight, optimizer = optimized(build, dtype)
    found = displaced(weight, optimizer, steps, "decaying")
    wanted = moved(weight, optimizer, steps, torch.zeros_like(weight))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)


@in_each_dtype(*MOMENTUM, *ADAM, MUON[2])
def test_steady_moments_repeat_the_last_change(build, dtype):
    """Of an optimizer whose step is made of nothing but its moments."""
    weight, optimizer = optimized(build, dtype)
    wanted = 3 * moved(weight, optimizer, 1, torch.randn_like(weight))
    assert torch.allclose(displaced(weight, optimizer, 3, "steady"), wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("build", "moment", "share"),
    [
        (MOMENTUM[0], "momentum_buffer", 0.1),  # 1 - mu (SpecTrain)
        (partial(Muon, momentum=0.5, weight_decay=0.0, nesterov=False), "momentum_buffer", 1.0),
        (partial(Muon, momentum=0.5, weight_decay=0.0, nesterov=True), "momentum_buffer", 1.0),
        (LION[0], "exp_avg", 1.0),
    ],
    ids=label,
)
def test_moments_are_exact_if_they_are_stationary(build, moment, share):
    """A moment stays what it is if each gradient is this share of it."""
    weight, optimizer = optimized(build)
    gradient = share * optimizer.state[weight][moment]
    found = displaced(weight, optimizer, 5, "steady")
    assert torch.allclose(found, moved(weight, optimizer, 5, gradient), rtol=1e-10)


def test_steady_moments_of_nadam_are_exact_if_they_are_stationary():
    """Late in a training, when momentum and corrections of the bias have their limits."""
    weight, optimizer = optimized(NADAM[0])
    state = optimizer.state[weight]
    state["step"].fill_(10_000)
    state["mu_product"].zero_()
    state["exp_avg_sq"] = state["exp_avg"] ** 2
    gradient, found = state["exp_avg"].clone(), displaced(weight, optimizer, 5, "steady")
    assert torch.allclose(found, moved(weight, optimizer, 5, gradient), rtol=1e-10)


def test_a_steady_step_of_nadam_is_the_one_whose_gradient_is_the_first_moment():
    """After one step, whose gradient is g: the first moment is (1 - beta1) g."""
    weight, optimizer = optimized(NADAM[0], steps=1)
    beta1, decay = 0.8, 0.1
    mu = [beta1 * (1 - 0.5 * 0.96 ** (t * decay)) for t in (1, 2)]
    g = optimizer.state[weight]["exp_avg"] / (1 - beta1)
    m = (1 - beta1) * g
    step = (1 - mu[0]) * m / (1 - mu[0]) + mu[1] * m / (1 - mu[0] * mu[1])
    wanted = -0.1 * step / (g.abs() + 0.01)
    assert torch.allclose(displaced(weight, optimizer, 1, "steady"), wanted, rtol=1e-10)


def predicting(direction, weights, optimizer):
    stage = StageInfo(0, 2, 1.0)
    return Predict(direction=direction).attach(stage, Weights(weights, optimizer))


def test_each_weight_is_displaced_by_the_optimizer_that_steps_it():
    """Of Muon and AdamW joined, as a stage's remedy asks them."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape).double()) for shape in ((4,), (5, 3), (2, 2))]
    others = [{"params": weights[:1], "weight_decay": 0.3}, {"params": weights[2:]}]
    options = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2}
    optimizer = MuonAdamW(weights[1:2], others, **options)
    acting = predicting("decaying", weights, optimizer)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    acting.observe_update([0.1] * 3, [])
    found = acting.shift_for_forward(3)
    before = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        optimizer.step()
    for change, old, weight in zip(found, before, weights, strict=True):
        assert torch.allclose(old + change, weight.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("direction", ["steady", "decaying"])
def test_only_weights_that_were_updated_and_still_are_get_predicted(direction):
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = SGD(weights, lr=0.1, momentum=0.9)
    acting = predicting(direction, weights, optimizer)
    assert acting.shift_for_forward(1) is None
    for weight in weights[:2]:
        weight.grad = torch.ones(2)
    optimizer.step()
    acting.observe_update([0.1], [])
    weights[0].requires_grad_(False)
    first, second, third = acting.shift_for_forward(1)
    assert (first, second is None, third) == (None, False, None)


class OwnSGD(SGD):
    """A user's optimizer, whose steps may be others."""


class TimmLion(Lion):
    """The class of `timm`, which tests do not install."""


TimmLion.__module__, TimmLion.__qualname__ = "timm.optim.lion", "Lion"


class OwnMuon(MuonAdamW):
    """A user's optimizer, whose steps may be others."""


@pytest.mark.parametrize(
    "build",
    [
        OwnSGD,
        torch.optim.Adagrad,
        SGD,
        partial(Muon, momentum=0.0),
        partial(OwnMuon, []),
        partial(Lion, decoupled_weight_decay=True),
        lambda weights: TimmLion([{"params": weights, "caution": True}]),
        lambda weights: TimmLion([{"params": weights, "cautious_factor": 0.5}]),
    ],
    ids=["OwnSGD", "Adagrad", "SGD", "Muon", "OwnMuon", "Lion", "caution", "cautious_factor"],
)
def test_optimizers_without_known_moments_have_no_displacement(build):
    assert displacements_of(build([torch.zeros(1, 1)])) is None
    assert displacements_of(TimmLion([{"params": [torch.zeros(1)]}])) is not None
    # One group without momentum is enough to have none.
    groups = SGD([{"params": [torch.zeros(1)], "momentum": m} for m in (0.9, 0.0)])
    assert displacements_of(groups) is None
    assert not has_momentum(groups)
