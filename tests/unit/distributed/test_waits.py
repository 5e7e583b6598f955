"""A wait for an operation ends with the operation, at whatever moment that is."""

import contextlib

import pytest

from hocket.distributed.failures.detector import finish_operation


class FakeWait:
    """A wait that tries again for ever."""

    def until(self, attempt):
        while True:
            with contextlib.suppress(TimeoutError):
                return attempt(1.0)


class FakeOperation:
    """An operation of gloo that is completed at the n-th look.

    Args:
        waits: Number of waits that run out of time.
        looks: Number of looks, after such a wait, that find it under way.
        error: Its error, if it fails.
    """

    def __init__(self, waits, looks, error=None):
        self.waits, self.looks, self.error = waits, looks, error

    def wait(self, limit):
        assert limit.total_seconds() == 1.0
        if self.waits:
            self.waits -= 1
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error

    def is_completed(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(("waits", "looks"), [(0, 0), (2, 2), (1, 0), (3, 2)])
def test_an_operation_that_is_completed_as_its_time_runs_out_is_done(waits, looks):
    """With fewer looks than waits it is completed between the last wait and the last look."""
    operation = FakeOperation(waits, looks)
    finish_operation(FakeWait(), operation)
    assert operation.waits == 0


@pytest.mark.parametrize("waits", [0, 1])
def test_an_operation_that_fails_ends_the_wait_with_its_own_error(waits):
    operation = FakeOperation(waits, 0, RuntimeError("connection reset by peer"))
    with pytest.raises(RuntimeError, match="connection reset by peer"):
        finish_operation(FakeWait(), operation)
