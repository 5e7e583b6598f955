"""Receives that are posted ahead: whatever the layouts, tensors arrive in order."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.distributed import wire
from hocket.transport.processes.backend import Lane
from hocket.transport.processes.posted_receives import ExpectedLayouts, PostedReceives
from unit.transport.lanes import Lanes


def transfer(lanes, expected, posted, tensors):
    """Send a message and receive it; return its tensors."""
    layout = [wire.tensor_spec(tensor) for tensor in tensors]
    header, rest = wire.encode_header({"tensors": layout})
    lanes.send(header, Lane.HEADER)
    if rest is not None:
        lanes.send(rest, Lane.LATE)
    for parts in expected.arrange(layout, tensors, lanes):
        for backend, tensor, lane in parts:
            backend.send(tensor, lane)
    first, rest = posted.receive_header()
    assert wire.decode_header(first, rest) == {"tensors": layout}
    received = posted.receive_tensors(layout)
    posted.post(layout)
    return received


sizes = st.lists(st.integers(0, 3), max_size=40)


@given(st.integers(1, 4), st.lists(sizes | st.just([2, 1]), max_size=12))
def test_whatever_the_layouts_tensors_arrive_in_order(ahead, messages):
    lanes, expected = Lanes(), ExpectedLayouts(ahead)
    posted = PostedReceives(lanes, lanes)
    for _ in range(ahead):
        posted.post([])
    for number, message in enumerate(messages):
        tensors = [torch.full((size,), 100.0 * number + i) for i, size in enumerate(message)]
        received = transfer(lanes, expected, posted, tensors)
        assert [tensor.tolist() for tensor in received] == [t.tolist() for t in tensors]
    assert not any(lanes.sent.values())
    for _ in range(ahead):  # as at the end of a connection
        transfer(lanes, expected, posted, [])
    assert not any(lanes.sent.values())


def test_receives_of_equal_messages_are_posted_before_their_headers_come():
    lanes, expected = Lanes(), ExpectedLayouts(2)
    posted = PostedReceives(lanes, lanes)
    for _ in range(2):
        posted.post([])
    tensors = [torch.ones(3), torch.ones(2, 2)]
    for _ in range(6):
        transfer(lanes, expected, posted, tensors)
    # The first two messages came with receives that were posted after their headers.
    assert lanes.posted[Lane.LATE] == 2 * len(tensors)
    assert lanes.posted[Lane.EXPECTED] == 6 * len(tensors)
    assert len(posted) == 2
    assert posted.received_bytes == 6 * (wire.HEADER_PREFIX_BYTES + 12 + 16)


def test_another_layout_fills_the_posted_receives_with_zeros():
    expected = ExpectedLayouts(1)
    lanes = Lanes()
    one, other = torch.ones(3), torch.ones(2)
    for tensor in (one, other):
        filling, after = expected.arrange([wire.tensor_spec(tensor)], [tensor], lanes)
    assert [(tensor.tolist(), lane) for _, tensor, lane in filling] == [
        ([0.0, 0.0, 0.0], Lane.EXPECTED)
    ]
    assert [(tensor.tolist(), lane) for _, tensor, lane in after] == [([1.0, 1.0], Lane.LATE)]
