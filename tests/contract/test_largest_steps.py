"""Largest stable learning rates on a parabola: what late gradients cost, and remedies win back.

The rates are those at which the largest root of the recursion's characteristic polynomial has
modulus one, to four digits. With momentum 0.9, one update of delay divides 3.8 by 38.
"""

from math import pi, sin

import pytest
import torch
from torch import Tensor, nn

from contract.small import train
from hocket.methods import DDG
from hocket.methods.simulated.delays import with_staleness
from hocket.remedies import Predict, SpikeCompensation

DELAYS = [1, 2, 3, 5, 7]
WITHOUT_MOMENTUM = [2 * sin(pi / (4 * late + 2)) for late in DELAYS]
STEADY = [0.2702, 0.1210, 0.07226, 0.03662, 0.02321]
DECAYING = [0.2531, 0.1141, 0.06926, 0.03660, 0.02427]
WITH_MOMENTUM = {
    "none": ([], [0.1000, 0.05125, 0.03478, 0.02150, 0.01575]),
    "steady": ([Predict(direction="steady")], STEADY),
    "last": ([Predict(direction="last")], STEADY),
    "decaying": ([Predict(direction="decaying")], DECAYING),
    "spike": ([SpikeCompensation()], DECAYING),
    "spike and last": (
        [SpikeCompensation(), Predict(direction="last")],
        [0.3450, 0.1355, 0.07407, 0.03379, 0.02025],
    ),
}
"""Remedies, and the limit at each delay."""


def parabola(output: Tensor, targets: Tensor) -> Tensor:
    return output.square().sum() / 2


def growth(remedies, late, lr, momentum):
    """Train, and return by how much an update multiplies the weight in the long run.

    Each weight is a linear function of those before it. Its coefficients follow from the path,
    and the largest root of their polynomial is the factor.
    """
    order = late + 3
    layer = nn.Linear(1, 1, bias=False, dtype=torch.double)
    nn.init.ones_(layer.weight)
    batches = [(torch.ones(1, 1, dtype=torch.double), torch.zeros(1))] * (6 * order + 20)
    path = []

    def watch(event, stage):
        if event.action.kind == "U" and stage.index == 0:
            path.append(layer.weight.item())

    method = with_staleness(DDG(), [late, 0]).with_remedies(*remedies)
    options = {"lr": lr, "momentum": momentum, "weight_decay": 0.0}
    train(method, [layer, nn.Identity()], batches, watch=watch, loss=parabola, **options)
    steady = torch.tensor(path[late + 2 : -late], dtype=torch.double)
    before = steady.unfold(0, order, 1)[:-1]
    # A recursion that needs fewer has many such coefficients; the smallest add no large root.
    of_before = torch.linalg.pinv(before, rtol=1e-12) @ steady[order:]
    companion = torch.diag(torch.ones(order - 1, dtype=torch.double), 1)
    companion[-1] = of_before
    return torch.linalg.eigvals(companion).abs().max()


@pytest.mark.parametrize(("late", "limit"), list(zip(DELAYS, WITHOUT_MOMENTUM, strict=True)))
def test_sgd_has_the_limit_of_the_lemma(late, limit):
    """PipeMare (arXiv 1910.05124), lemma 1: 2 sin(pi / (4 S + 2))."""
    assert growth([], late, limit * (1 - 1e-4), 0.0) < 1
    assert growth([], late, limit * (1 + 1e-4), 0.0) > 1


@pytest.mark.parametrize("late", DELAYS)
@pytest.mark.parametrize(
    ("remedies", "limits"), WITH_MOMENTUM.values(), ids=WITH_MOMENTUM.keys()
)
def test_momentum_has_a_low_limit_that_remedies_raise(remedies, limits, late):
    """To three digits and a half."""
    limit = limits[DELAYS.index(late)]
    assert growth(remedies, late, limit * (1 - 5e-4), 0.9) < 1
    assert growth(remedies, late, limit * (1 + 5e-4), 0.9) > 1
