"""Batches that the first of several processes reads ahead."""

import pytest
import torch

from hocket.engine.lookahead import BatchAnnouncer
from hocket.transport.processes.connection_ports import Lookahead


def reusing(count):
    """Yield batches, all in the same memory."""
    inputs, targets = {"x": torch.zeros(2)}, torch.zeros(2, dtype=torch.int64)
    for number in range(count):
        inputs["x"].fill_(number)
        targets.fill_(number)
        yield inputs, targets


@pytest.mark.parametrize("ahead", [1, 2, 5, 20])
def test_a_loader_that_fills_the_same_memory_again_gives_every_batch(ahead):
    announced = BatchAnnouncer(None, None)(reusing(8), Lookahead(), 0, ahead)
    numbers = [(inputs["x"].tolist(), targets.tolist()) for inputs, targets in announced]
    assert numbers == [([n, n], [n, n]) for n in range(8)]
