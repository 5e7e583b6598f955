"""Tolerance of the comparison on a GPU, which adds in another order and with fewer digits."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from hocket import Plan, cut
from hocket.partition.verify import _both, _nearly_equal

VALUES = torch.randn(1000, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([0.0, -math.inf, 0.0])


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (VALUES, VALUES.flip(0).cumsum(0).diff(prepend=torch.zeros(1)).flip(0), True),
        (VALUES, VALUES.bfloat16().float(), True),
        (VALUES.bfloat16(), (VALUES * 1.004).bfloat16(), True),
        (VALUES * 1e-7, torch.zeros(1000), True),
        (VALUES + 1j, VALUES * 1.0001 + 1j, True),
        (MASK, MASK.clone(), True),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (VALUES, VALUES * 1.1, False),
        (VALUES, VALUES.roll(1), False),
        (VALUES, torch.full((1000,), math.nan), False),
        (MASK, torch.zeros(3), False),
        (torch.zeros(3), MASK, False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (VALUES, VALUES.double(), False),
    ],
)
def test_other_roundings_are_told_from_other_values(one, other, wanted):
    assert _nearly_equal(one, other) is wanted


def test_numbers_that_are_none_differ_from_numbers_only():
    both = partial(_both, torch.equal)
    one, same = torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan])
    assert both(one, same)
    assert not both(one, torch.tensor([1.0, 2.0]))
    assert not both(one, torch.tensor([2.0, math.nan]))
    assert not both(one, None)


def test_a_network_is_cut_at_a_sample_with_nan():
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    sample = torch.tensor([[1.0, math.nan], [1.0, 2.0]])
    assert len(cut(network, stages=Plan("2"), sample=sample)) == 2
