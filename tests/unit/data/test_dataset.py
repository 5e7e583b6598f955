"""Targets that a network cannot predict are refused."""

import pytest
import torch

from hocket.data import check_targets
from hocket.errors import DataError


def test_targets_in_range_pass():
    check_targets(torch.tensor([[0, 9], [3, 4]]), classes=10)


@pytest.mark.parametrize("targets", [[0, 10], [-1, 3], [-1, 12]])
def test_targets_out_of_range_name_both_ends(targets):
    expected = (
        rf"range from {min(targets)} to {max(targets)}, but 10 classes want 0 to 9; renum"
    )
    with pytest.raises(DataError, match=expected):
        check_targets(torch.tensor(targets), classes=10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_targets_that_are_no_integers_are_refused(dtype):
    with pytest.raises(
        DataError, match=rf"targets are {dtype}; give class numbers as integers"
    ):
        check_targets(torch.zeros(3, dtype=dtype), classes=10)
