"""Batches in flight are stored by number; a doubled or a missing one is an error."""

from types import SimpleNamespace

import pytest

from hocket.errors import PacketError
from hocket.stage.in_flight import InFlight


def forwarded(batch: int) -> SimpleNamespace:
    return SimpleNamespace(activation=SimpleNamespace(batch=batch))


def test_batches_are_taken_by_number_in_any_order():
    in_flight = InFlight(stage=1)
    batches = [forwarded(b) for b in range(3)]
    for batch in batches:
        in_flight.add(batch)
    assert len(in_flight) == 3
    assert in_flight[1] is batches[1]
    assert [in_flight.pop(b) for b in (1, 0, 2)] == [batches[1], batches[0], batches[2]]
    assert len(in_flight) == 0


def test_a_second_forward_is_refused():
    in_flight = InFlight(stage=1)
    in_flight.add(forwarded(4))
    with pytest.raises(PacketError, match="stage 1: batch 4 was forwarded twice"):
        in_flight.add(forwarded(4))


@pytest.mark.parametrize(("waiting", "text"), [([], "none"), ([3, 5], "3, 5")])
def test_a_backward_without_forward_is_refused(waiting, text):
    in_flight = InFlight(stage=1)
    for batch in waiting:
        in_flight.add(forwarded(batch))
    with pytest.raises(
        PacketError,
        match=f"stage 1: batch 4 is to be back-propagated .* in flight are {text}",
    ):
        in_flight.pop(4)
