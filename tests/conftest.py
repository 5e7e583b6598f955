"""What all tests share: signals as in a terminal; one thread, as equal bits need."""

import gc
import signal

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# The same examples in every run, and no failure because a machine is slow.
settings.register_profile("laws", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("laws")


@pytest.fixture(autouse=True, scope="session")
def _signals_as_in_a_terminal():
    """Hear signals that background jobs and ``nohup`` ignore, here and in what tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # the tests outlive the terminal still


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids with addresses, which are others in each of several processes."""
    if wrong := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"{len(wrong)} ids have an address, the first is {wrong[0]}")


def pytest_collection_finish() -> None:
    """Spare later searches for garbage the thousands of tests that have been collected."""
    gc.freeze()
