"""What all tests share: one thread, as equal bits need equal thread counts."""

import gc

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# The same examples in every run, and no failure because a machine is slow.
settings.register_profile("laws", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("laws")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids with addresses, which are others in each of several processes."""
    if wrong := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"{len(wrong)} ids have an address, the first is {wrong[0]}")


def pytest_collection_finish() -> None:
    """Spare later searches for garbage the thousands of tests that have been collected."""
    gc.freeze()
