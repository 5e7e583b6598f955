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


def test_take_does_not_wait_for_a_packet_that_cannot_arrive(inbox):
    """Packets of one kind arrive in order; the order of kinds is not known."""
    put(inbox, 5)
    with pytest.raises(TransitError, match="thing 4 was expected; in its place came thing 5"):
        inbox.take(("thing", 4), SOON)
    with pytest.raises(TimeoutError):
        inbox.take(("other", 4), AT_ONCE)


def test_an_error_wakes_a_waiting_take_and_is_raised_by_every_later_one(inbox):
    ending = threading.Timer(0.05, inbox.fail, (ConnectionError("gone"),))
    ending.start()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            inbox.take(("thing", 0), SOON)
    ending.join()


def test_a_closed_inbox_drops_what_comes_so_that_no_thread_waits_for_room(inbox):
    put(inbox, 0, 1)
    filler = start_thread(put, inbox, 2, 3, 4)
    inbox.close()
    filler.join(SOON)
    assert not filler.is_alive()
    with pytest.raises(TimeoutError):
        inbox.take(("thing", 0), AT_ONCE)
