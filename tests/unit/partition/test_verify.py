"""Tolerance of the comparison on a GPU, which adds in another order and with fewer digits."""

import math

import pytest
import torch

from hocket.partition.verify import _nearly_equal

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
