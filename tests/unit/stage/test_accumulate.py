"""Sums, means and scales of gradients; largest values, searched for NaN and infinity."""

import math
import random

import pytest
import torch
from torch import Tensor, nn

from hocket.stage.update import loss_scale
from hocket.stage.update.accumulate import GradientAccumulator
from hocket.stage.update.loss_scale import FIRST_SCALE, LossScale
from hocket.stage.update.norms import largest_values

VALUES = {
    "negative": torch.tensor([[1.0, -3.0], [2.0, 0.5]]),
    "positive": torch.tensor([1.0, 4.0, -2.0]),
    "scalar": torch.tensor(-2.5),
    "infinite": torch.tensor([1.0, -math.inf]),
    "both infinities": torch.tensor([math.inf, -math.inf]),
    "nan": torch.tensor([1.0, math.nan, math.inf]),
    "overflows as a square": torch.tensor([3e38, -1e38]),
    "bfloat16": torch.tensor([1.0, -7.0], dtype=torch.bfloat16),
    "float16": torch.tensor([60000.0, math.nan], dtype=torch.float16),
    "complex": torch.tensor([1 + 0j, -5j]),
    "conjugate": torch.tensor([1 + 0j, complex(0, math.nan)]).conj(),
    "sparse": torch.tensor([[0.0, -6.0], [0.0, 2.0]]).to_sparse(),
    "view with gaps": torch.arange(12.0).view(3, 4)[:, ::2],
}


def naive_largest(value: Tensor) -> float:
    numbers = value.to_dense().resolve_conj().reshape(-1).tolist()
    parts = [abs(x) for z in numbers for x in (complex(z).real, complex(z).imag)]
    return math.nan if any(map(math.isnan, parts)) else max(parts)


def test_largest_values_of_tensors_of_all_kinds():
    largest = [float(value) for value in largest_values(list(VALUES.values()))]
    wanted = [naive_largest(value) for value in VALUES.values()]
    assert largest == pytest.approx(wanted, nan_ok=True)


def test_integers_and_empty_tensors_count_as_zero():
    values = [torch.tensor([3, 4]), torch.tensor([True]), torch.zeros(0), torch.ones(2)]
    values += [torch.zeros(0, dtype=torch.complex64), torch.zeros(2, 2).to_sparse()]
    assert [float(value) for value in largest_values(values)] == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("reached", ["1", "0", "11", "01", "10", "111", "0101", "000"])
def test_gradients_of_batches_are_added_up_also_behind_a_checkpoint(reached, reduce):
    """A batch that does not reach a weight adds zero; one that none reaches has no gradient."""
    gradients = [2.0**n if there == "1" else None for n, there in enumerate(reached)]
    for resumed in range(len(reached)):
        weight = nn.Parameter(torch.zeros(2).double())
        accumulator = GradientAccumulator([weight], reduce)
        for n, gradient in enumerate(gradients):
            if n == resumed:
                state = accumulator.state_dict()
                accumulator = GradientAccumulator([weight], reduce)
                accumulator.load_state_dict(state)
            weight.grad = None if gradient is None else torch.full_like(weight, gradient)
            accumulator.add()
            assert weight.grad is None
        accumulator.reduce()
        total = sum(gradient or 0 for gradient in gradients)
        mean = total / (len(reached) if reduce == "mean" else 1)
        assert (weight.grad.tolist() if total else weight.grad) == (
            [mean] * 2 if total else None
        )
        assert accumulator.count == 0


# The loss scale.


def test_the_scale_is_that_of_torchs_scaler(monkeypatch):
    theirs = torch.amp.GradScaler("cpu")
    assert (
        theirs.get_growth_factor(),
        theirs.get_backoff_factor(),
        theirs.get_growth_interval(),
    ) == (loss_scale.GROWTH, loss_scale.BACKOFF, loss_scale.GROWTH_INTERVAL)
    assert LossScale(FIRST_SCALE).factor == theirs.get_scale()
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 8)
    draw = random.Random(1)
    ends = [True] * 8 + [draw.random() < 0.9 for _ in range(80)]
    ours, weight = LossScale(FIRST_SCALE), nn.Parameter(torch.zeros(()))
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
    first, second = LossScale(FIRST_SCALE), LossScale(FIRST_SCALE)
    for finite in (False, True, True):
        first.judge(finite=finite)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        for _ in range(loss_scale.GROWTH_INTERVAL - 2):
            scale.judge(finite=True)
        assert scale.factor == 65536


def test_gradients_lose_the_scale_and_small_ones_of_inputs_survive():
    scale = LossScale(1024.0)
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
    half, same, none = scale.unscale(weights, [each.grad for each in inputs])
    assert (weights[0].grad.tolist(), weights[1].grad) == ([1.0, 2 / 1024], None)
    assert weights[2].grad.to_dense().tolist() == [[0, 0], [0.5, 0], [0, 0]]
    assert (half.dtype, half.tolist()) == (torch.float32, [2.0**-30, 3 / 1024])
    assert (same.tolist(), none) == ([1.0, 2 / 1024], None)
