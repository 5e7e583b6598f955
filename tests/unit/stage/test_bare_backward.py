"""A backward is PyTorch's to the bit, and whoever wants to see it sees it."""

import logging

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hocket.stage.passes import back_propagate as module
from hocket.stage.passes.back_propagate import bare_backward


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
    ("kind", "calls"),
    [
        ("loss", 0),
        ("gradient", 0),
        ("both", 0),
        ("complex", 0),
        ("another type", 1),
        ("an empty batch", 0),
    ],
)
def test_gradients_are_those_of_pytorch(kind, calls, whole_calls):
    weight, (roots, gradients) = roots_of(kind)
    bare_backward(roots, gradients)
    assert len(whole_calls) == calls
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
