"""Boxes of packets, between threads and in one.

An inbox and an outbox hold a few; adding more waits for room, or for an error. A mailbox gives
each packet once, by the number of its batch.
"""

import threading
from unittest.mock import Mock

import pytest
import torch

from hocket.errors import PacketError, TransitError
from hocket.transport.mailbox import Edge, NoNextStage
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes.inbox import Inbox
from hocket.transport.processes.outbox import Outbox
from hocket.tree import tensors

SOON = 60.0  # seconds, which nothing here takes
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
        assert not box.full
        box.add(sends.begin(number), AT_ONCE)
    assert box.full
    return box


def test_a_send_without_room_waits_until_the_first_one_has_finished(outbox, sends):
    sends.finish(1)
    with pytest.raises(TimeoutError):
        outbox.add(sends.begin(2), AT_ONCE)
    threading.Timer(AT_ONCE, sends.finish, [0]).start()
    outbox.add(sends.begin(2), SOON)
    assert sends.begun == [0, 1, 2]


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
    outbox = Outbox("test", capacity=1)
    with pytest.raises(RuntimeError, match="not connected"):
        outbox.add(Mock(side_effect=RuntimeError("not connected")), AT_ONCE)
    outbox.add(sends.begin(0), AT_ONCE)
    assert sends.begun == [0]


def test_the_last_send_of_an_outbox_begins_after_all_others(outbox, sends):
    outbox.close(sends.begin(2))
    sends.finish(0)
    assert not outbox.join(AT_ONCE)
    assert sends.begun == [0, 1]
    sends.finish(1)
    sends.finish(2)
    assert outbox.join(SOON)
    assert sends.begun == [0, 1, 2]


# Mailboxes.


def activation(batch: int) -> Activation:
    return Activation(batch, 0, torch.zeros(1), (True,), None)


def test_a_repeated_packet_is_named():
    edge = Edge("stage 0", "stage 1")
    for port, packet, told in (
        (edge.to_next(), activation(4), "activations from stage 0 to stage 1: batch 4"),
        (edge.to_previous(), Gradient(4, ()), "gradients from stage 1 to stage 0: batch 4"),
    ):
        port.send(packet)
        with pytest.raises(PacketError, match=told):
            port.send(packet)


def test_the_end_of_the_network_sends_no_gradients():
    NoNextStage().send(activation(0))
    with pytest.raises(PacketError, match=r"gradient of batch 2 .* the end of the network"):
        NoNextStage().receive(2)


PACKET = Activation(
    3,
    1,
    {"h": torch.zeros(2), "mask": torch.ones(2)},
    (True, False),
    torch.ones(2),
    0.5,
    (False, True),
)


def test_the_packet_of_a_skipped_batch_has_no_tensor():
    empty = PACKET.without_values()
    assert empty.skipped
    assert not PACKET.skipped
    assert not [*tensors(empty.values), *tensors(empty.targets), *empty.exact]
    assert (empty.batch, empty.epoch, empty.share) == (3, 1, 0.5)
    assert empty.differentiable == (True, False)


def test_behind_a_codec_a_packet_names_no_tensor_that_is_to_stay_exact():
    other = PACKET.with_values(torch.zeros(4))
    assert vars(other) | {"values": PACKET.values, "exact": PACKET.exact} == vars(PACKET)
    assert other.exact == ()
