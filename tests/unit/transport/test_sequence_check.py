"""Packets of a neighbour that are refused, and the error messages."""

import pytest
import torch

from hocket.distributed import wire
from hocket.errors import TransitError
from hocket.transport.processes.sequence_check import SequenceCheck


@pytest.fixture
def check():
    return SequenceCheck("stage 1, from stage 0")


def arrive(check, *packets):
    for sequence, (kind, number) in enumerate(packets):
        check.check_header({"kind": kind, "number": number, "sequence": sequence})


def test_packets_of_all_kinds_are_counted_and_each_kind_is_numbered(check):
    arrive(check, ("opening", 0), ("activation", 5), ("evaluation", 0), ("activation", 7))


def test_every_evaluation_is_numbered_from_0(check):
    arrive(check, ("evaluation", 0), ("evaluation", 1), ("opening", 1), ("evaluation", 0))


def test_the_first_packet_may_be_lost(check):
    with pytest.raises(TransitError, match="but packet 0 was expected after nothing: packets"):
        check.check_header({"kind": "activation", "number": 0, "sequence": 1})


def test_batches_of_a_kind_ascend(check):
    with pytest.raises(TransitError, match="stage 0: gradient 3 came after gradient 4; resume"):
        arrive(check, ("gradient", 4), ("activation", 3), ("gradient", 3))


def test_tensors_without_checksums_are_accepted(check):
    header = {"kind": "activation", "number": 0, "checksums": None}
    check.check_tensors(header, [torch.ones(2)])
    check.check_tensors(header | {"checksums": [None]}, [torch.ones(2)])
    checksums = [wire.checksum(torch.ones(2))]
    check.check_tensors(header | {"checksums": checksums}, [torch.ones(2)])
