"""Backwards and steps leave out wrappers of PyTorch; whoever wants to see them sees them."""

import functools
import logging

import pytest
import torch
from torch import nn, optim
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode

from hocket.stage.passes import back_propagate as module
from hocket.stage.passes.back_propagate import bare_backward
from hocket.stage.update.bare_step import bare_step


def roots_of(kind):
    """Return a weight, and roots with gradients that begin a backward to it."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.complex64 if kind == "complex" else torch.float32
    weight = nn.Parameter(torch.randn(5, 3, generator=generator, dtype=dtype))
    wide = torch.complex128 if kind == "complex" else torch.float64
    inputs = torch.randn(4, 5, generator=generator, dtype=dtype)
    gradient = torch.randn(4, 3, generator=generator, dtype=dtype)
    output = inputs @ weight
    return weight, {
        "loss": ([output.abs().sum()], [None]),
        "gradient": ([output], [gradient]),
        "both": ([output, output.mean().reshape(1)], [gradient, None]),
        "complex": ([output], [gradient]),
        "another type": ([output], [gradient.to(wide)]),
        "an empty batch": ([output[:0]], [gradient[:0]]),
    }[kind]


@pytest.fixture
def whole_calls(monkeypatch):
    """Calls of PyTorch's own function."""
    calls, whole = [], torch.autograd.backward

    def backward(*arguments, retain_graph=False):
        calls.append(arguments)
        whole(*arguments, retain_graph=retain_graph)

    monkeypatch.setattr(torch.autograd, "backward", backward)
    monkeypatch.setattr(module, "_WHOLE", backward)
    return calls


@pytest.mark.parametrize(
    "kind", ["loss", "gradient", "both", "complex", "another type", "an empty batch"]
)
def test_gradients_are_those_of_pytorch(kind, whole_calls):
    weight, (roots, gradients) = roots_of(kind)
    bare_backward(roots, gradients)
    assert len(whole_calls) == (kind == "another type")
    expected, (roots, gradients) = roots_of(kind)
    torch.autograd.backward(roots, gradients)
    assert torch.equal(weight.grad, expected.grad)


def test_a_graph_is_freed():
    _, (roots, gradients) = roots_of("gradient")
    bare_backward(roots, gradients)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        bare_backward(roots, gradients)


class Seen(TorchFunctionMode):
    """Writes down the functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_mode_and_the_log_of_pytorch_see_the_backward(caplog):
    weight, (roots, gradients) = roots_of("gradient")
    with Seen() as seen:
        bare_backward(roots, gradients)
    assert "backward" in seen.names
    assert weight.grad is not None
    _, (roots, gradients) = roots_of("gradient")
    with caplog.at_level(logging.DEBUG, logger="torch.autograd.graph"):
        bare_backward(roots, gradients)
    assert "MmBackward0" in caplog.text


def test_under_another_pytorch_the_backward_is_whole_and_a_wrapper_is_called(
    monkeypatch, whole_calls
):
    with monkeypatch.context() as patch:
        patch.setattr(module, "_ENGINE", None)
        weight, (roots, gradients) = roots_of("loss")
        bare_backward(roots, gradients)
    assert len(whole_calls) == 1
    assert weight.grad is not None
    monkeypatch.undo()
    monkeypatch.setattr(
        torch.autograd, "backward", lambda *arguments, **_: whole_calls.append(1)
    )
    weight, (roots, gradients) = roots_of("gradient")
    bare_backward(roots, gradients)
    assert (whole_calls[1:], weight.grad) == ([1], None)


# Steps.


@pytest.fixture
def weight():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return weight


@pytest.fixture
def optimizer(weight):
    return optim.SGD([weight], lr=0.1)


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


def test_a_scheduler_does_not_miss_its_wrapper_which_is_left_out(optimizer, weight):
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer._opt_called = True  # as an updater notes in advance
    step = bare_step(optimizer)
    assert isinstance(step, functools.partial)
    step()
    assert weight.tolist() == pytest.approx([0.9] * 3)
    scheduler.step()  # without a warning
    assert scheduler.get_last_lr() == [0.05]
