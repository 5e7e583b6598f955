"""Signals: their refusals, their networks, and their backward roots."""

import math

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import DGL, DNI, FDG, build_method
from hocket.signals import Delayed, Local, Similarity, Synthetic


@pytest.mark.parametrize("shrink", [0, -0.5, 1.5, math.nan, math.inf, True, "0.5"])
def test_shrink_outside_its_range_is_refused(shrink):
    said = r"shrink is .*; (use a number in \(0, 1\]|wanted a finite number)"
    with pytest.raises(OptionError, match=said):
        Delayed(shrink)
    with pytest.raises(OptionError, match=said):
        build_method("fdg", shrink=shrink)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"width": 0.0}, "width is 0.0; use a number above 0"),
        ({"width": -1.0}, "width is -1.0; use a number above 0"),
        ({"width": math.inf}, "width is inf; wanted a finite number"),
        ({"width": math.nan}, "width is nan; wanted a finite number"),
        ({"depth": -1}, "depth is -1; use a number of at least 0"),
        ({"depth": 1.5}, "depth is 1.5; wanted a whole number"),
        ({"head": "cnn", "depth": 2}, "'cnn' has no hidden layers that width=1.0 and depth=2"),
        ({"head": "cnn", "width": 2.0}, "could change; leave them out, or use 'mlp'"),
        ({"depth": 0, "width": 2.0}, "depth=0 leaves no hidden layers that width=2.0"),
    ],
)
def test_impossible_sizes_of_heads_are_refused(choices, said):
    with pytest.raises(OptionError, match=f"(?s)a local loss cannot be built:.*{said}"):
        Local(**choices)


@pytest.mark.parametrize("weight", [-0.1, 1, 1.5, math.nan, math.inf, True])
def test_similarity_outside_its_range_and_labels_of_another_kind_are_refused(weight):
    said = r"similarity is .*; use a number in \(0, 1\), or 0 to leave it off"
    with pytest.raises(OptionError, match=said):
        DGL(similarity=weight)
    with pytest.raises(OptionError, match=said):
        Similarity(weight)
    with pytest.raises(OptionError, match="labels is 1; wanted true or false"):
        DNI(labels=1)


class Pair(nn.Module):
    def forward(self, values):
        return values, values


class First(nn.Module):
    def forward(self, values):
        return values[0]


@pytest.mark.parametrize("method", [DGL(), DNI()], ids=["dgl", "dni"])
def test_signals_with_a_network_need_an_output_of_one_tensor(method):
    first, last = mlp(2)
    modules = [nn.Sequential(first, Pair()), nn.Sequential(First(), last)]
    with pytest.raises(OptionError, match=f"method '{method.name}': the output of stage 0"):
        Trainer(modules, method=method, optimizer=sgd).prepare(data(mlp, 1)[0][0])
    Trainer(modules, method=FDG(), optimizer=sgd).prepare(data(mlp, 1)[0][0])


@pytest.mark.parametrize("signal", [Local(), Local("mlp", depth=0)])
@pytest.mark.parametrize(
    ("shape", "output_shape"),
    [
        ((6,), ()),
        ((6,), (3,)),
        ((4, 6, 6), ()),
        ((4, 6, 6), (3,)),
        ((7, 6), ()),
        ((7, 6), (3,)),
        ((7, 6), (7, 3)),
    ],
)
def test_a_head_predicts_in_the_shape_of_the_networks_output(signal, shape, output_shape):
    head = signal.build_network(shape, output_shape)
    assert signal.predict(head, torch.randn(5, *shape)).shape == (5, *output_shape)


def test_a_network_with_one_number_a_sample_trains_its_heads_towards_each_target():
    """A head of shape (B, 1) would broadcast against (B,), and learn the mean of the batch."""
    modules = [mlp(2)[0], nn.Sequential(nn.Linear(5, 1).double(), nn.Flatten(0))]
    shapes = []

    def loss(output, targets):
        shapes.append(output.shape)
        return (output - targets).square().mean()

    trainer = Trainer(modules, method=DGL(), optimizer=sgd, loss=loss)
    trainer.step(data(mlp, 1)[0][0], torch.zeros(4, dtype=torch.double))
    trainer.finish()
    assert shapes == [(4,)] * 2


@pytest.mark.parametrize(
    ("shape", "output_shape", "said"),
    [
        ((6,), None, "heads call the loss with one tensor of predictions as the network's"),
        ((4, 8, 8), (3, 8, 8), r"shape \(4, 8, 8\) predict \(B, O\).*shape \(B, 3, 8, 8\)"),
        ((7, 6), (5, 3), r"shape \(7, 6\) predict \(B, O\).*shape \(B, 5, 3\); cut"),
    ],
)
def test_heads_that_cannot_predict_the_networks_output_are_refused(shape, output_shape, said):
    for signal in (Local(), Similarity()):
        with pytest.raises(OptionError, match=said):
            signal.build_network(shape, output_shape)


@pytest.mark.parametrize("output_shape", [None, ()])
def test_labels_for_a_synthesizer_need_a_network_that_predicts_classes(output_shape):
    with pytest.raises(OptionError, match="output is not one tensor of class scores; leave"):
        Synthetic(labels=True).build_network((6,), output_shape)
    Synthetic().build_network((6,), output_shape)
