"""Batches of any form that replicas share, and batches that are read ahead."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from hocket.engine.lookahead import BatchAnnouncer
from hocket.engine.share import take_share
from hocket.errors import DataError
from hocket.signals.losses import cross_entropy
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import tensors

X = torch.arange(4.0).reshape(4, 1)
IMAGES = [torch.full((n, 2), float(n)) for n in (1, 2, 3, 5)]


def shares(inputs, targets, replicas=2):
    """Fraction and part of each replica."""
    found = []
    for replica in range(replicas):
        core = SimpleNamespace(meetings=None, setup=SimpleNamespace(loss=cross_entropy))
        stage = SimpleNamespace(core=core)
        found.append(take_share((inputs, targets), replica, replicas, stage))
    return found


BOXES = [{"boxes": torch.full((n, 2), float(n))} for n in (4, 4, 1, 5)]


class Named(NamedTuple):
    x: torch.Tensor
    name: str


# Targets, and the lengths of the tensors in the parts of two replicas.
DIVIDED = {
    "a list in a dict": ({"boxes": IMAGES}, ([1, 2], [3, 5])),
    "a list and a tensor": ((IMAGES, X), ([1, 2, 2], [3, 5, 2])),
    "a tuple": (tuple(IMAGES), ([1, 2], [3, 5])),
    "tensors of whole batches": ([X, X, X, X], ([2, 2, 2, 2], [2, 2, 2, 2])),
    "mappings": (BOXES, ([4, 4], [1, 5])),
    "a tuple of mappings": (tuple(BOXES), ([4, 4], [1, 5])),
    "an ordered dict": (OrderedDict(m=X), ([2], [2])),
    "a named tuple": (Named(X, "name"), ([2], [2])),
    "nothing": (None, ([], [])),
}


@pytest.mark.parametrize(("targets", "lengths"), DIVIDED.values(), ids=DIVIDED)
def test_targets_of_any_structure_are_divided(targets, lengths):
    """Lists with an entry for each sample by entries, and other structures within."""
    for (fraction, (inputs, own)), wanted in zip(shares(X, targets), lengths, strict=True):
        assert (fraction, len(inputs), type(own)) == (0.5, 2, type(targets))
        assert [len(tensor) for tensor in tensors(own)] == wanted


def test_targets_of_which_no_tensor_has_the_samples_are_refused():
    with pytest.raises(DataError, match=r"targets of a batch of 4: none .* \[\(7, 2\)\]"):
        shares(X, {"boxes": torch.zeros(7, 2)})


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
