"""Messages: whatever the layouts, tensors arrive in order, and what is not next is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.distributed import wire
from hocket.errors import TransitError
from hocket.transport.processes.backend import Lane
from hocket.transport.processes.message import MessageReader, MessageWriter
from unit.transport.lanes import Lanes


class Transfer:
    """Both ends of a connection; the receives of some messages are posted ahead."""

    def __init__(self, ahead=2):
        self.lanes = Lanes()
        self.writer = MessageWriter(self.lanes, ahead, checksum=True)
        self.reader = MessageReader("stage 1, from stage 0", self.lanes)
        for _ in range(ahead):
            self.reader.post([])

    def send(self, tensors, kind="evaluation", number=0):
        """Send a message."""
        message = self.writer.encode(kind, number, {"values": tensors})
        message.begin()
        self.writer.count(message)

    def __call__(self, tensors, kind="evaluation", number=0):
        """Send a message and receive it; return its tensors."""
        self.send(tensors, kind, number)
        received = self.reader.receive()
        self.reader.post(received.header["tensors"])
        return received.tensors


sizes = st.lists(st.integers(0, 3), max_size=40)


@given(st.integers(1, 4), st.lists(sizes | st.just([2, 1]), max_size=12))
def test_whatever_the_layouts_tensors_arrive_in_order(ahead, messages):
    transfer = Transfer(ahead)
    for number, message in enumerate(messages):
        tensors = [torch.full((size,), 100.0 * number + i) for i, size in enumerate(message)]
        received = transfer(tensors)
        assert [tensor.tolist() for tensor in received] == [t.tolist() for t in tensors]
    assert not any(transfer.lanes.sent.values())
    for _ in range(ahead):  # as at the end of a connection
        transfer([])
    assert not any(transfer.lanes.sent.values())


def test_receives_of_equal_messages_are_posted_before_their_headers_come():
    transfer = Transfer()
    tensors = [torch.ones(3), torch.ones(2, 2)]
    for _ in range(6):
        transfer(tensors)
    # The first two messages came with receives that were posted after their headers.
    assert transfer.lanes.posted[Lane.LATE] == 2 * len(tensors)
    assert transfer.lanes.posted[Lane.EXPECTED] == 6 * len(tensors)
    assert len(transfer.reader.posted) == 2
    assert transfer.writer.sent_bytes == 6 * (wire.HEADER_PREFIX_BYTES + 12 + 16)


def test_a_message_that_is_not_the_next_one_is_refused():
    transfer = Transfer()
    transfer([], "gradient", 4)
    transfer([], "activation", 3)
    with pytest.raises(TransitError, match="stage 0: gradient 3 came after gradient 4; resume"):
        transfer([], "gradient", 3)


def test_tensors_without_checksums_are_accepted(monkeypatch):
    transfer = Transfer()
    with monkeypatch.context() as at_sender:
        at_sender.setattr(wire, "checksum", lambda tensor: None)  # as on a GPU
        transfer.send([torch.ones(2)])
    assert transfer.reader.receive().tensors[0].tolist() == [1, 1]
