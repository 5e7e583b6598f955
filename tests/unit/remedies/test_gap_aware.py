"""Gap-aware gradients in an optimizer with groups of different learning rates."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from hocket.remedies import GapAware, StageInfo, Weights


@pytest.mark.parametrize("other", [0.001, 1.0])
def test_a_typical_step_of_a_weight_is_that_of_its_group(other):
    """Both weights have moved by one such step, so that their gradients are halved."""
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    lrs = [0.001, other]
    groups = [{"params": [w], "lr": lr} for w, lr in zip(weights, lrs, strict=True)]
    optimizer = SGD(groups, momentum=0.9)
    acting = GapAware().attach(StageInfo(0, 2, 1.0), Weights(weights, optimizer))
    forward_weights = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.ones(3)
    optimizer.step()
    acting.observe_update(lrs, [])
    acting.correct_gradient(forward_weights)
    for weight in weights:
        torch.testing.assert_close(weight.grad, torch.full((3,), 0.5))


def test_a_typical_step_has_the_largest_learning_rate_there_was():
    """Momentum and gradient stay 1 here, so that a gap of one such step is the rate."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = SGD([weight], momentum=0.9)
    acting = GapAware().attach(StageInfo(0, 2, 1.0), Weights([weight], optimizer))
    optimizer.state[weight]["momentum_buffer"] = torch.ones(3)
    for lr in (0.1, 0.5, 0.2):
        acting.observe_update([lr], [])
    weight.grad = torch.ones(3)
    acting.correct_gradient([weight.detach() + 0.5])
    torch.testing.assert_close(weight.grad, torch.full((3,), 0.5))
