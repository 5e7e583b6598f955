"""One thread puts packets into an inbox, another takes them by key; capacity is limited."""

import threading

import pytest

from hocket.errors import TransitError
from hocket.transport.processes.inbox import Inbox

SOON = 10.0  # seconds, which nothing here takes
AT_ONCE = 0.05


@pytest.fixture
def inbox():
    return Inbox("stage 1, from stage 0", capacity=2)


def put(inbox, *numbers):
    for number in numbers:
        inbox.put(("thing", number), f"packet {number}")


def start_thread(do, *arguments):
    thread = threading.Thread(target=do, args=arguments, daemon=True)
    thread.start()
    return thread


def test_packets_are_taken_by_key_in_any_order(inbox):
    put(inbox, 0, 1)
    assert inbox.take(("thing", 1), SOON) == "packet 1"
    assert inbox.take(("thing", 0), SOON) == "packet 0"


def test_take_waits_for_the_packet(inbox):
    filler = threading.Timer(0.05, put, (inbox, 0))
    filler.start()
    assert inbox.take(("thing", 0), SOON) == "packet 0"
    filler.join()


def test_put_waits_for_room(inbox):
    put(inbox, 0, 1)
    filler = start_thread(put, inbox, 2)
    filler.join(0.05)
    assert filler.is_alive()
    inbox.take(("thing", 0), SOON)
    filler.join(SOON)
    assert not filler.is_alive()
    assert inbox.take(("thing", 2), SOON) == "packet 2"


def test_a_repeated_packet_is_named(inbox):
    put(inbox, 4)
    with pytest.raises(TransitError, match="stage 1, from stage 0: thing 4 arrived twice"):
        put(inbox, 4)


def test_a_key_may_be_used_again_once_it_was_taken(inbox):
    put(inbox, 4)
    inbox.take(("thing", 4), SOON)
    put(inbox, 4)
    assert inbox.take(("thing", 4), SOON) == "packet 4"


def test_other_packets_that_fill_the_inbox_are_named(inbox):
    put(inbox, 1, 2)
    with pytest.raises(
        TransitError,
        match="from stage 0: thing 3 was expected; in its place came thing 1, thing 2",
    ):
        inbox.take(("thing", 3), SOON)


def test_take_does_not_wait_for_a_packet_that_cannot_arrive(inbox):
    """Packets of one kind arrive in order; the order of kinds is not known."""
    put(inbox, 5)
    with pytest.raises(TransitError, match="thing 4 was expected; in its place came thing 5"):
        inbox.take(("thing", 4), SOON)
    with pytest.raises(TimeoutError):
        inbox.take(("other", 4), AT_ONCE)


def test_an_error_is_raised_by_every_take(inbox):
    inbox.fail(ConnectionError("gone"))
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            inbox.take(("thing", 0), SOON)


def test_an_error_wakes_a_waiting_take(inbox):
    ending = threading.Timer(0.05, inbox.fail, (ConnectionError("gone"),))
    ending.start()
    with pytest.raises(ConnectionError, match="gone"):
        inbox.take(("thing", 0), SOON)
    ending.join()


def test_packets_from_before_an_error_can_still_be_taken(inbox):
    put(inbox, 0)
    inbox.fail(ConnectionError("gone"))
    assert inbox.take(("thing", 0), SOON) == "packet 0"


def test_take_has_a_time_out(inbox):
    put(inbox, 1)
    with pytest.raises(TimeoutError):
        inbox.take(("thing", 2), AT_ONCE)


def test_a_closed_inbox_drops_what_comes_so_that_no_thread_waits_for_room(inbox):
    put(inbox, 0, 1)
    filler = start_thread(put, inbox, 2, 3, 4)
    inbox.close()
    filler.join(SOON)
    assert not filler.is_alive()
    with pytest.raises(TimeoutError):
        inbox.take(("thing", 0), AT_ONCE)
