"""Signals: their refusals, their networks, and their backward roots."""

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import DGL, DNI, FDG
from hocket.signals import Local, Similarity, Synthetic
from hocket.signals.signal import StageShapes


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
            signal.build_network(StageShapes(shape, output_shape))


@pytest.mark.parametrize("output_shape", [None, ()])
def test_labels_for_a_synthesizer_need_a_network_that_predicts_classes(output_shape):
    with pytest.raises(OptionError, match="output is not one tensor of class scores; leave"):
        Synthetic(labels=True).build_network(StageShapes((6,), output_shape))
    Synthetic().build_network(StageShapes((6,), output_shape))
