"""A few sends on their way; whoever begins more waits for room, or for an error."""

import threading

import pytest

from hocket.transport.outbox import Outbox

SOON = 10.0  # nothing here takes that long
AT_ONCE = 0.05


class Sends:
    """Sends by number: those that have begun, and those that may finish."""

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
    """One with room for two, which are on their way."""
    box = Outbox("test", room=2)
    for number in (0, 1):
        box.add(sends.begin(number), AT_ONCE)
    return box


def test_who_sends_goes_on_while_there_is_room(outbox, sends):
    assert sends.begun == [0, 1]


def test_who_finds_no_room_in_time_has_begun_nothing(outbox, sends):
    with pytest.raises(TimeoutError):
        outbox.add(sends.begin(2), AT_ONCE)
    assert sends.begun == [0, 1]


def test_who_finds_no_room_waits_for_it(outbox, sends):
    threading.Timer(AT_ONCE, sends.finish, [0]).start()
    outbox.add(sends.begin(2), SOON)
    assert sends.begun == [0, 1, 2]


def test_sends_finish_in_the_order_in_which_they_began(outbox, sends):
    sends.finish(1)
    with pytest.raises(TimeoutError):
        outbox.add(sends.begin(2), AT_ONCE)


def test_all_sends_are_waited_for(outbox, sends):
    sends.finish(0)
    with pytest.raises(TimeoutError):
        outbox.drain(AT_ONCE)
    sends.finish(1)
    outbox.drain(SOON)


def test_an_error_wakes_whoever_waits_for_room(outbox, sends):
    threading.Timer(AT_ONCE, outbox.fail, [ConnectionError("somebody failed")]).start()
    with pytest.raises(ConnectionError, match="somebody failed"):
        outbox.add(sends.begin(2), SOON)
    with pytest.raises(ConnectionError, match="somebody failed"):
        outbox.drain(SOON)


def test_an_error_of_a_send_is_raised_where_the_next_one_would_begin():
    def finish():
        raise RuntimeError("the way is cut")

    outbox = Outbox("test", room=1)
    outbox.add(lambda: finish, SOON)
    with pytest.raises(RuntimeError, match="the way is cut"):
        outbox.add(lambda: finish, SOON)


def test_the_thread_ends_with_what_is_on_its_way(outbox, sends):
    outbox.close(AT_ONCE)
    assert outbox._thread.is_alive()
    sends.finish(0)
    sends.finish(1)
    outbox.close(SOON)
    assert not outbox._thread.is_alive()
