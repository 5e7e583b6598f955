"""Weights that nobody trains are named, and nothing else is."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from contract.small import data, different, mlp, sgd
from hocket import FDG, Trainer, cross_entropy
from hocket.errors import OptionError
from hocket.signals import Delayed
from hocket.signals.signal import BackwardRoots
from hocket.stage.update.untrained import describe_names

BATCHES = data(mlp, 6)


def matrices(params):
    return sgd([p for p in params if p.dim() > 1])


def test_weights_that_the_optimizer_leaves_out_are_named_once():
    network = nn.Sequential(*mlp(2))
    trainer = Trainer(network, stages=2, optimizer=matrices)
    with pytest.warns(UserWarning, match="get gradients and have no optimizer") as told:
        trainer.fit(BATCHES, epochs=1, progress=False)
    biases = [name for name, _ in network.named_parameters() if name.endswith("bias")]
    assert len(told) == 1
    assert f"{len(biases)} weights ({', '.join(biases)})" in str(told[0].message)
    assert describe_names([str(n) for n in range(10)]).endswith(" 6, 7, and 2 more)")


def test_weights_left_out_move_nothing_else():
    """Bit-equal to a training in which they are frozen; their gradients do not pile up."""
    left = []

    def train(frozen):
        modules = mlp(2)
        for module in modules if frozen else []:
            for p in module.parameters():
                p.requires_grad_(p.dim() > 1)

        def watch(event, stage):
            if event.action.kind == "U":
                left.extend(p.grad for p in stage.module.parameters())

        trainer = Trainer(modules, method=FDG(), optimizer=matrices, watchers=[watch])
        with warnings.catch_warnings(action="error" if frozen else "ignore"):
            trainer.fit(BATCHES, epochs=2, progress=False)
        return [p for module in modules for p in module.parameters()]

    assert not different(train(frozen=False), train(frozen=True))
    assert set(left) == {None}


class Scaled(nn.Module):
    """Cross-entropy at a temperature that is to be learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, targets):
        return cross_entropy(output * self.scale, targets)


def test_weights_of_the_loss_are_named_unless_it_is_a_method_of_the_network():
    with pytest.warns(UserWarning, match=r"1 weights \(loss.scale\) get gradients and have"):
        Trainer(mlp(2), optimizer=sgd, loss=Scaled()).prepare(BATCHES[0][0])

    class Network(nn.Linear):
        def loss(self, output, targets):
            return cross_entropy(output, targets)

    network = Network(5, 3).double()
    trainer = Trainer(network, stages=1, optimizer=sgd, loss=network.loss)
    trainer.prepare(BATCHES[0][0])  # without a warning


@pytest.mark.parametrize("stages", [1, 2])
def test_weights_that_are_unfrozen_later_are_named_when_they_get_gradients(stages):
    network = nn.Sequential(*mlp(2))
    network[0][0].requires_grad_(False)
    trainer = Trainer(network, stages=stages, optimizer=sgd)
    trainer.fit(BATCHES, epochs=1, progress=False)  # without a warning
    network[0][0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"2 weights \(0.0.weight, 0.0.bias\) were fr") as told:
        trainer.fit(BATCHES, epochs=1, progress=False)
    assert len(told) == 1


@pytest.mark.parametrize("method", ["fdg", "dgl"])
@pytest.mark.parametrize(
    "loss",
    [lambda o, t: cross_entropy(o, t).detach(), lambda o, t: torch.tensor(1.0)],
    ids=["detached", "constant"],
)
def test_a_loss_without_a_graph_is_refused_as_by_pytorch(loss, method):
    trainer = Trainer(mlp(2), method=method, optimizer=sgd, loss=loss)
    with pytest.raises(OptionError, match=r"stage \d: the loss does not depend on the output"):
        trainer.fit(BATCHES, epochs=1, progress=False)


def test_a_signal_without_a_graph_is_refused():
    class Detached(Delayed):
        def backward_roots(self, network, inputs):
            return BackwardRoots((inputs.output.detach(),), inputs.received)

    trainer = Trainer(mlp(2), method=replace(FDG(), signal=Detached()), optimizer=sgd)
    with pytest.raises(OptionError, match=r"stage 0: the signal does not depend on the output"):
        trainer.fit(BATCHES, epochs=1, progress=False)
