"""Targets that a network cannot predict are refused."""

import pytest
import torch

from hocket.data import check_targets
from hocket.errors import DataError


def test_targets_in_range_pass():
    check_targets(torch.tensor([[0, 9], [3, 4]]), classes=10)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.tensor([0, 10]), "range from 0 to 10, but 10 classes want 0 to 9"),
        (torch.tensor([-1, 3]), "range from -1 to 3, but 10 classes want 0 to 9"),
        (torch.zeros(3), "targets are torch.float32; give class numbers as integers"),
        (torch.zeros(3, dtype=torch.complex64), "targets are torch.complex64; give class"),
    ],
)
def test_targets_that_are_no_class_numbers_are_refused(targets, said):
    with pytest.raises(DataError, match=said):
        check_targets(targets, classes=10)
