"""Batches in flight are found by number; one too many or too few is an error."""

from types import SimpleNamespace

import pytest

from hocket.errors import PacketError
from hocket.stage.in_flight import InFlight


def forwarded(batch: int) -> SimpleNamespace:
    return SimpleNamespace(activation=SimpleNamespace(batch=batch))


def test_batches_are_taken_by_number_in_any_order():
    pending = InFlight(stage=1)
    batches = [forwarded(b) for b in range(3)]
    for batch in batches:
        pending.add(batch)
    assert len(pending) == 3
    assert pending[1] is batches[1]
    assert [pending.pop(b) for b in (1, 0, 2)] == [batches[1], batches[0], batches[2]]
    assert len(pending) == 0


def test_a_second_forward_is_refused():
    pending = InFlight(stage=1)
    pending.add(forwarded(4))
    with pytest.raises(PacketError, match="stage 1: batch 4 was forwarded twice"):
        pending.add(forwarded(4))


@pytest.mark.parametrize(("waiting", "text"), [([], "none"), ([3, 5], "3, 5")])
def test_a_backward_without_forward_is_refused(waiting, text):
    pending = InFlight(stage=1)
    for batch in waiting:
        pending.add(forwarded(batch))
    with pytest.raises(
        PacketError,
        match=f"stage 1: batch 4 is to be back-propagated .* in flight are {text}",
    ):
        pending.pop(4)
