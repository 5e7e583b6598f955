"""Boxes between threads: received packets are taken by key, and sends begin in order.

An inbox and an outbox hold a few; adding more waits for room, or for an error.
"""

import threading

import pytest

from hocket.errors import TransitError
from hocket.transport.processes.inbox import Inbox
from hocket.transport.processes.outbox import Outbox

SOON = 10.0  # seconds, which nothing here takes
AT_ONCE = 0.05


@pytest.fixture
def inbox():
    return Inbox("stage 1, from stage 0", capacity=2)


def put(inbox, *numbers):
    for number in numbers:
        inbox.put(("thing", number), f"packet {number}")


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
    filler = threading.Thread(target=put, args=(inbox, 2, 3, 4), daemon=True)
    filler.start()
    inbox.close()
    filler.join(SOON)
    assert not filler.is_alive()
    with pytest.raises(TimeoutError):
        inbox.take(("thing", 0), AT_ONCE)


class Sends:
    """Sends by number, with those that have begun and those that may finish."""

    def __init__(self):
        self.begun = []
        self._may_finish = {}

    def begin(self, number):
        event = self._may_finish.setdefault(number, threading.Event())

        def begin():
            self.begun.append(number)
            return event.wait

        return begin

    def finish(self, number):
        self._may_finish[number].set()


@pytest.fixture
def sends():
    return Sends()


@pytest.fixture
def outbox(sends):
    """Build an outbox with room for two sends, which have begun."""
    box = Outbox("test", capacity=2)
    for number in (0, 1):
        box.add(sends.begin(number), AT_ONCE)
    return box


def test_an_outbox_is_full_from_its_last_place_on(sends):
    box, seen = Outbox("test", capacity=2), []
    for number in (0, 1):
        seen.append(box.full)
        box.add(sends.begin(number), AT_ONCE)
    assert [*seen, box.full] == [False, False, True]


def test_a_send_without_room_waits_for_it(outbox, sends):
    threading.Timer(AT_ONCE, sends.finish, [0]).start()
    outbox.add(sends.begin(2), SOON)
    assert sends.begun == [0, 1, 2]


def test_sends_finish_in_the_order_in_which_they_began(outbox, sends):
    sends.finish(1)
    with pytest.raises(TimeoutError):
        outbox.add(sends.begin(2), AT_ONCE)


def test_an_error_wakes_a_send_that_waits_for_room_and_is_raised_by_every_later_one():
    cut = threading.Event()

    def finish():
        cut.wait()
        raise RuntimeError("the connection is cut")

    outbox = Outbox("test", capacity=1)
    outbox.add(lambda: finish, SOON)
    threading.Timer(AT_ONCE, cut.set).start()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the connection is cut"):
            outbox.add(lambda: finish, SOON)


def test_a_send_that_cannot_begin_takes_no_place(sends):
    def fail():
        raise RuntimeError("not connected")

    outbox = Outbox("test", capacity=1)
    with pytest.raises(RuntimeError, match="not connected"):
        outbox.add(fail, AT_ONCE)
    outbox.add(sends.begin(0), AT_ONCE)
    assert sends.begun == [0]


def test_the_last_send_of_an_outbox_begins_after_all_others(outbox, sends):
    begin = sends.begin(2)

    def send_last():
        wait = begin()
        wait()

    outbox.close(send_last)
    sends.finish(0)
    assert not outbox.join(AT_ONCE)
    assert sends.begun == [0, 1]
    sends.finish(1)
    sends.finish(2)
    assert outbox.join(SOON)
    assert sends.begun == [0, 1, 2]
