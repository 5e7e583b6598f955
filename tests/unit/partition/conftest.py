"""All networks in these tests have the same weights in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(0)
