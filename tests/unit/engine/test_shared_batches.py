"""Batches of any form that replicas share, and batches that are read ahead."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from hocket.engine.distributed import DistributedEngine
from hocket.engine.lookahead import BatchAnnouncer
from hocket.errors import DataError
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import flatten, tensors

X = torch.arange(4.0).reshape(4, 1)
IMAGES = [torch.full((n, 2), float(n)) for n in (1, 2, 3, 5)]


def shares(inputs, targets, replicas=2):
    """Fraction and part of each replica."""
    found = []
    for replica in range(replicas):
        engine = SimpleNamespace(
            _world=SimpleNamespace(replica=replica, replicas=replicas),
            stages=[SimpleNamespace(ignored_target=-100)],
        )
        found.append(DistributedEngine._share(engine, (inputs, targets)))
    return found


@pytest.mark.parametrize("targets", [{"boxes": IMAGES}, (IMAGES, X), tuple(IMAGES)])
def test_a_list_with_an_entry_for_each_sample_is_divided(targets):
    parts = shares(X, targets)
    assert [fraction for fraction, _ in parts] == [0.5, 0.5]
    boxes = [own["boxes"] if isinstance(own, dict) else own for _, (_, own) in parts]
    boxes = [own[0] if isinstance(own[0], list) else own for own in boxes]
    assert [[len(image) for image in part] for part in boxes] == [[1, 2], [3, 5]]


def test_other_targets_are_divided_within_or_refused():
    (_, (_, first)), _ = shares(X, [X, X, X, X])
    assert [len(tensor) for tensor in first] == [2, 2, 2, 2]
    assert [len(inputs) for _, (inputs, _) in shares(X, None)] == [2, 2]
    told = r"cannot divide the targets of a batch of 4: none of their tensors .* \[\(7, 2\)\]"
    with pytest.raises(DataError, match=told):
        shares(X, {"boxes": torch.zeros(7, 2)})


BOXES = [{"boxes": torch.full((n, 2), float(n))} for n in (4, 4, 1, 5)]


@pytest.mark.parametrize("kind", [list, tuple])
def test_mappings_of_each_sample_are_divided_whatever_lengths_they_have(kind):
    parts = [own for _, (_, own) in shares(X, kind(BOXES))]
    assert all(type(part) is kind for part in parts)
    assert [[len(each["boxes"]) for each in part] for part in parts] == [[4, 4], [1, 5]]


def test_structures_stay_what_they_are():
    inputs = X, OrderedDict(m=X), Named(X, "name")
    for _, pair in shares(inputs, inputs):
        for own in pair:
            assert flatten(own)[1] == flatten(inputs)[1]
            assert [len(tensor) for tensor in tensors(own)] == [2, 2, 2]


class Named(NamedTuple):
    x: torch.Tensor
    name: str


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
