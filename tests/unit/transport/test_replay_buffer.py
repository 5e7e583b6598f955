"""A replay buffer keeps the last packets, draws the least used, and counts both."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import PacketError
from hocket.methods.method import Replay
from hocket.transport.packet import Activation, Gradient
from hocket.transport.replay_buffer import BufferToNext, BufferToPrevious, ReplayBuffer

# Arrivals and draws in any order, in rings of any size, with or without a limit.
histories = st.lists(st.sampled_from(["put", "draw"]), max_size=60)


def packet(number, size=2):
    return Activation(number, 0, torch.full((size, 3), number), (False,), torch.zeros(size))


def drawn(buffer):
    packet = buffer.draw()
    return None if packet is None else packet.batch


@given(st.integers(1, 6), st.integers(0, 3), histories)
def test_a_draw_gives_the_least_used_packet_and_of_several_the_freshest(room, limit, history):
    buffer = ReplayBuffer(Replay(buffer=room, reuse=limit))
    uses: list[int] = []  # of every packet that ever arrived
    for step in history:
        if step == "put":
            buffer.put(packet(len(uses)))
            uses.append(0)
            continue
        kept = range(max(0, len(uses) - room), len(uses))
        expected = min(kept, key=lambda n: (uses[n], -n), default=None)
        if expected is not None and limit and uses[expected] >= limit:
            expected = None
        assert drawn(buffer) == expected
        if expected is not None:
            uses[expected] += 1
    # Every packet is used or dropped, or waits.
    stats = buffer.stats
    assert stats.arrived == history.count("put")
    assert stats.drawn + stats.refused == history.count("draw")
    assert stats.drawn - stats.reused + stats.dropped + buffer.waiting == stats.arrived
    assert len(buffer.state_dict()["slots"]) == min(room, stats.arrived)


def test_buffer_bytes_are_those_of_the_full_ring_at_its_largest():
    buffer = ReplayBuffer(Replay(buffer=2))
    for number in range(3):
        buffer.put(packet(number))
    largest = 2 * (2 * 3 * 8 + 2 * 4)
    assert buffer.stats.buffer_bytes == largest
    buffer.put(packet(3, size=1))
    assert buffer.stats.buffer_bytes == largest
    assert buffer.stats.arrived_bytes == 3.5 * largest / 2
    buffer.put(replace(packet(4), network_input=torch.zeros(9)))
    assert buffer.stats.arrived_bytes == 4.5 * largest / 2 + 9 * 4


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=20))
def test_every_packet_that_was_sent_has_arrived_or_is_lost_or_was_sent_anew(history):
    """Packets are left out, and a sender goes back to a turn that it has done before."""
    buffer, number, wanted = ReplayBuffer(Replay()), 0, [0, 0, 0]
    for back, count in history:
        moved = min(count, number) if back else count
        number += -moved if back else moved
        wanted[2 if back else 1] += moved
        buffer.put(packet(number))
        wanted[0] += 1
        number += 1
    stats = buffer.stats
    assert [stats.arrived, stats.lost, stats.orphaned] == wanted


def test_a_drawn_packet_gets_the_number_and_epoch_of_the_turn():
    buffer = ReplayBuffer(Replay(buffer=1))
    to_previous, to_next = BufferToPrevious(buffer), BufferToNext(buffer)
    assert not to_previous.draw(0, epoch=0)
    to_next.send(packet(7))
    for turn in (0, 1):
        assert to_previous.draw(turn, epoch=3 + turn)
        received = to_previous.receive(turn)
        assert (received.batch, received.epoch) == (turn, 3 + turn)
        assert torch.equal(received.values, packet(7).values)


def test_a_skipped_batch_takes_no_place_in_the_buffer():
    buffer = ReplayBuffer(Replay(buffer=1))
    for sent in (packet(0).without_values(), packet(1), packet(2).without_values()):
        BufferToNext(buffer).send(sent)
    assert (buffer.stats.arrived, buffer.stats.lost, drawn(buffer)) == (1, 0, 0)


def test_nothing_is_received_without_a_draw_and_no_gradients_are_sent():
    buffer = ReplayBuffer(Replay(buffer=1))
    with pytest.raises(PacketError, match=r"no packet was drawn .* for turn 4"):
        BufferToPrevious(buffer).receive(4)
    with pytest.raises(PacketError, match="a gradient of batch 2 was sent"):
        BufferToPrevious(buffer).send(Gradient(2, ()))
    with pytest.raises(PacketError, match="a gradient of batch 3 was expected"):
        BufferToNext(buffer).receive(3)
