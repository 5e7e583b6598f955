"""What is refused of a neighbour's packets, and in which words."""

import pytest
import torch

from hocket.distributed import wire
from hocket.errors import TransitError
from hocket.transport.sequence_check import SequenceCheck


@pytest.fixture
def order():
    return SequenceCheck("stage 1, from stage 0")


def came(order, *packets):
    for sequence, (kind, number) in enumerate(packets):
        order.require_next({"kind": kind, "number": number, "sequence": sequence})


def test_kinds_are_counted_together_and_numbered_apart(order):
    came(order, ("opening", 0), ("activation", 5), ("evaluation", 0), ("activation", 7))


def test_what_is_evaluated_is_numbered_anew_each_time(order):
    came(order, ("evaluation", 0), ("evaluation", 1), ("opening", 1), ("evaluation", 0))


def test_the_first_packet_may_be_lost(order):
    with pytest.raises(TransitError, match="packet 0 was to come after nothing: what was bef"):
        order.require_next({"kind": "activation", "number": 0, "sequence": 1})


def test_batches_of_a_kind_ascend(order):
    with pytest.raises(TransitError, match="stage 0: gradient 3 came after gradient 4; go on"):
        came(order, ("gradient", 4), ("activation", 3), ("gradient", 3))


def test_tensors_without_checksums_are_taken_as_they_are(order):
    header = {"kind": "activation", "number": 0, "checksums": None}
    order.require_intact(header, [torch.ones(2)])
    order.require_intact(header | {"checksums": [None]}, [torch.ones(2)])
    own = [wire.checksum(torch.ones(2))]
    order.require_intact(header | {"checksums": own}, [torch.ones(2)])
