"""Largest stable learning rates on a parabola: what late gradients cost, and remedies win back.

The rates are those at which the largest root of the recursion's characteristic polynomial has
modulus one, to four digits. With momentum 0.9, one update of delay divides 3.8 by 38.
"""

from math import pi, sin

import pytest
import torch
from torch import Tensor, nn

from contract.small import train
from hocket.methods import PipeDream
from hocket.remedies import Predict, SpikeCompensation

WITHOUT_MOMENTUM = {late: 2 * sin(pi / (4 * late + 2)) for late in (1, 3)}
PLAIN = {1: 0.0998, 3: 0.0347}
REMEDIED = {
    "steady": {1: 0.2699, 3: 0.0722},
    "last": {1: 0.2699, 3: 0.0722},
    "decaying": {1: 0.2529, 3: 0.0692},
    "spike": {1: 0.2528, 3: 0.0691},
    "spike and last": {1: 0.3449, 3: 0.0741},
}
REMEDIES = {
    "steady": [Predict(direction="steady")],
    "last": [Predict(direction="last")],
    "decaying": [Predict(direction="decaying")],
    "spike": [SpikeCompensation()],
    "spike and last": [SpikeCompensation(), Predict(direction="last")],
}
every_delay = pytest.mark.parametrize("late", [1, 3])


class Weight(nn.Module):
    """One weight, which is the output for an input of one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def parabola(output: Tensor, targets: Tensor) -> Tensor:
    return output.square().sum() / 2


def grows(method, late, lr, momentum, updates=300):
    """Train, and compare the last third of the way with the one before."""
    modules = [Weight(), *(nn.Identity() for _ in range(late))]
    batches = [(torch.ones(1, dtype=torch.double), torch.zeros(1))] * updates
    path = []

    def watch(event, stage):
        if event.action.kind == "U" and stage.index == 0:
            path.append(abs(modules[0].weight.item()))

    options = {"lr": lr, "momentum": momentum, "weight_decay": 0.0}
    train(method, modules, batches, watch=watch, loss=parabola, **options)
    return max(path[-updates // 3 :]) > max(path[-2 * updates // 3 : -updates // 3])


@every_delay
def test_sgd_has_the_limit_of_the_lemma(late):
    """PipeMare (arXiv 1910.05124), lemma 1: 2 sin(pi / (4 S + 2))."""
    limit = WITHOUT_MOMENTUM[late]
    assert not grows(PipeDream(), late, 0.99 * limit, 0.0)
    assert grows(PipeDream(), late, 1.01 * limit, 0.0)


@every_delay
@pytest.mark.parametrize("name", [None, *REMEDIED])
def test_momentum_has_a_low_limit_that_remedies_raise(name, late):
    method = PipeDream().with_remedies(*REMEDIES.get(name, []))
    limit = REMEDIED.get(name, PLAIN)[late]
    assert not grows(method, late, 0.98 * limit, 0.9)
    assert grows(method, late, 1.02 * limit, 0.9)
