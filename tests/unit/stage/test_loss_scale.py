"""The loss scale: its size after each backward, and gradients without it."""

import random

import torch
from torch import nn

from hocket.stage.update import loss_scale
from hocket.stage.update.loss_scale import DynamicScale


def test_the_scale_is_that_of_torchs_scaler(monkeypatch):
    theirs = torch.amp.GradScaler("cpu")
    assert (
        theirs.get_growth_factor(),
        theirs.get_backoff_factor(),
        theirs.get_growth_interval(),
    ) == (loss_scale.GROWTH, loss_scale.BACKOFF, loss_scale.GROWTH_INTERVAL)
    assert DynamicScale().factor == theirs.get_scale()
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 8)
    draw = random.Random(1)
    ends = [True] * 8 + [draw.random() < 0.9 for _ in range(80)]
    ours, weight = DynamicScale(), nn.Parameter(torch.zeros(()))
    theirs = torch.amp.GradScaler("cpu", growth_interval=8)
    sgd = torch.optim.SGD([weight], lr=0.0)
    theirs.scale(torch.ones(()))
    seen = set()
    for finite in ends:
        weight.grad = torch.tensor(1.0 if finite else torch.inf)
        theirs.step(sgd)
        theirs.update()
        assert ours.judge(finite=finite) is not finite
        assert ours.factor == theirs.get_scale()
        seen.add(ours.factor)
    assert len(seen) > 3


def test_a_scale_goes_on_where_another_was():
    first, second = DynamicScale(), DynamicScale()
    for finite in (False, True, True):
        first.judge(finite=finite)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        for _ in range(loss_scale.GROWTH_INTERVAL - 2):
            scale.judge(finite=True)
        assert scale.factor == 65536


def test_gradients_lose_the_scale_and_small_ones_of_inputs_survive():
    scale = DynamicScale(1024.0)
    weights = [
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(2)),
        nn.Embedding(3, 2).weight,
    ]
    weights[0].grad = kept = torch.tensor([1024.0, 2.0])
    weights[2].grad = torch.sparse_coo_tensor(
        [[1]], [[512.0, 0.0]], (3, 2), check_invariants=True
    )
    inputs = [torch.ones(2, dtype=torch.float16), torch.ones(2), torch.ones(2)]
    inputs[0].grad = torch.tensor([2.0**-20, 3.0], dtype=torch.float16)
    inputs[1].grad = kept  # the memory of the gradient of a weight
    half, same, none = scale.unscale(weights, inputs)
    assert (weights[0].grad.tolist(), weights[1].grad) == ([1.0, 2 / 1024], None)
    assert weights[2].grad.to_dense().tolist() == [[0, 0], [0.5, 0], [0, 0]]
    assert (half.dtype, half.tolist()) == (torch.float32, [2.0**-30, 3 / 1024])
    assert (same.tolist(), none) == ([1.0, 2 / 1024], None)
