"""What one thread leaves another takes by name; room is limited."""

import threading

import pytest

from hocket.errors import TransitError
from hocket.transport.inbox import Inbox

SOON = 10.0  # nothing here takes that long


@pytest.fixture
def inbox():
    return Inbox("stage 1, from stage 0", room=2)


def put(inbox, *numbers):
    for number in numbers:
        inbox.put(("thing", number), f"packet {number}")


def aside(do, *arguments):
    thread = threading.Thread(target=do, args=arguments, daemon=True)
    thread.start()
    return thread


def test_packets_are_taken_by_name_in_any_order(inbox):
    put(inbox, 0, 1)
    assert inbox.take(("thing", 1), SOON) == "packet 1"
    assert inbox.take(("thing", 0), SOON) == "packet 0"


def test_who_takes_waits_until_it_is_there(inbox):
    filler = threading.Timer(0.05, put, (inbox, 0))
    filler.start()
    assert inbox.take(("thing", 0), SOON) == "packet 0"
    filler.join()


def test_who_fills_waits_for_room(inbox):
    put(inbox, 0, 1)
    filler = aside(put, inbox, 2)
    filler.join(0.05)
    assert filler.is_alive()
    inbox.take(("thing", 0), SOON)
    filler.join(SOON)
    assert not filler.is_alive()
    assert inbox.take(("thing", 2), SOON) == "packet 2"


def test_a_doubled_packet_is_named(inbox):
    put(inbox, 4)
    with pytest.raises(TransitError, match="stage 1, from stage 0: thing 4 arrived twice"):
        put(inbox, 4)


def test_what_was_taken_may_come_again(inbox):
    put(inbox, 4)
    inbox.take(("thing", 4), SOON)
    put(inbox, 4)
    assert inbox.take(("thing", 4), SOON) == "packet 4"


def test_others_that_take_all_the_room_are_named(inbox):
    put(inbox, 1, 2)
    with pytest.raises(
        TransitError,
        match="from stage 0: thing 3 was expected; in its place came thing 1, thing 2",
    ):
        inbox.take(("thing", 3), SOON)


def test_who_waits_for_what_was_passed_over_does_not_wait(inbox):
    """Those of a kind come in order; of others nothing is known."""
    put(inbox, 5)
    with pytest.raises(TransitError, match="thing 4 was expected; in its place came thing 5"):
        inbox.take(("thing", 4), SOON)
    with pytest.raises(TimeoutError):
        inbox.take(("other", 4), timeout_s=0.05)


def test_what_ended_the_arrivals_is_passed_on_again_and_again(inbox):
    inbox.fail(ConnectionError("gone"))
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            inbox.take(("thing", 0), SOON)


def test_who_waits_already_hears_of_it(inbox):
    ending = threading.Timer(0.05, inbox.fail, (ConnectionError("gone"),))
    ending.start()
    with pytest.raises(ConnectionError, match="gone"):
        inbox.take(("thing", 0), SOON)
    ending.join()


def test_what_arrived_before_the_end_can_still_be_taken(inbox):
    put(inbox, 0)
    inbox.fail(ConnectionError("gone"))
    assert inbox.take(("thing", 0), SOON) == "packet 0"


def test_nobody_waits_for_ever(inbox):
    put(inbox, 1)
    with pytest.raises(TimeoutError):
        inbox.take(("thing", 2), timeout_s=0.05)
