"""Replay buffer: a ring of the last packets of an edge, from which a stage draws.

Neither side waits for the other: a new packet overwrites the oldest, and a draw gives an old
packet again if no new one has come. Both are counted.
"""

import threading
from dataclasses import dataclass, replace
from operator import attrgetter

from hocket.errors import PacketError
from hocket.methods.method import Replay
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import ForwardOnlyPort
from hocket.transport.stats import ReceiveStats
from hocket.tree import Tree, tensors


@dataclass
class _Slot:
    packet: Activation
    drawn: int = 0

    def __post_init__(self) -> None:
        kept = (self.packet.values, self.packet.targets, self.packet.network_input)
        self.nbytes = sum(tensor.nbytes for tensor in tensors(kept))


class ReplayBuffer:
    """Ring of the last packets of an edge (DGL, arXiv 1901.08164, algorithm 2).

    A draw gives the least used packet, and of several the freshest. One thread may put while
    another one draws.

    Args:
        rule: Number of packets in the ring, and the limit on the draws of each.
    """

    def __init__(self, rule: Replay) -> None:
        self.stats = ReceiveStats()
        self._rule = rule
        self._slots: list[_Slot] = []
        self._next = 0  # index of the slot to fill next: the oldest, once all are filled
        self._changed = threading.Condition()

    def put(self, packet: Activation) -> None:
        """Add a packet; it replaces the oldest one if the ring is full."""
        slot = _Slot(packet)
        with self._changed:
            self.count_lost(packet.batch)
            self.stats.arrived += 1
            self.stats.arrived_bytes += slot.nbytes
            if len(self._slots) < self._rule.buffer:
                self._slots.append(slot)
            else:
                self.stats.dropped += self._slots[self._next].drawn == 0
                self._slots[self._next] = slot
            self._next = (self._next + 1) % self._rule.buffer
            nbytes = sum(slot.nbytes for slot in self._slots)
            self.stats.buffer_bytes = max(self.stats.buffer_bytes, nbytes)
            self._changed.notify_all()

    def state_dict(self) -> Tree:
        """Return the packets, the number of draws of each, and the statistics."""
        with self._changed:
            return {
                "slots": [
                    {"packet": vars(slot.packet), "drawn": slot.drawn} for slot in self._slots
                ],
                "next": self._next,
                "stats": vars(self.stats).copy(),
            }

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a buffer with the same rule."""
        with self._changed:
            self._slots = [
                _Slot(Activation(**slot["packet"]), slot["drawn"]) for slot in state["slots"]
            ]
            self._next = state["next"]
            vars(self.stats).update(state["stats"])
            self._changed.notify_all()

    def count_lost(self, number: int) -> None:
        """Count lost and orphaned packets.

        Args:
            number: Number of packets that the sender has counted before the one that arrives.
        """
        missed = number - (self.stats.arrived + self.stats.lost - self.stats.orphaned)
        if missed > 0:
            self.stats.lost += missed
        else:
            self.stats.orphaned -= missed

    @property
    def waiting(self) -> int:
        """Number of packets in the ring that have not been drawn."""
        return sum(slot.drawn == 0 for slot in self._slots)

    def draw(self) -> Activation | None:
        """Return a packet, which stays; None if none can be drawn."""
        with self._changed:
            slot = self._best()
            if slot is None:
                self.stats.refused += 1
                return None
            self.stats.drawn += 1
            self.stats.reused += slot.drawn > 0
            slot.drawn += 1
            return slot.packet

    def wait(self, timeout_s: float, *, fresh: bool = False) -> bool:
        """Wait until a packet can be drawn; return False if none can in time.

        Args:
            timeout_s: Time to wait.
            fresh: Wait for a packet that was never drawn.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.waiting > 0 if fresh else self._best() is not None, timeout_s
            )

    def _best(self) -> _Slot | None:
        """Return the freshest of the least drawn slots, which a draw would give, if any."""
        count = len(self._slots)
        freshest_first = (self._slots[(self._next - 1 - back) % count] for back in range(count))
        slot = min(freshest_first, key=attrgetter("drawn"), default=None)
        limit = self._rule.reuse
        return None if slot is None or (limit and slot.drawn >= limit) else slot


class BufferToNext(ForwardOnlyPort):
    """Port to the next stage that puts activations into that stage's replay buffer."""

    receiver = "a replay buffer"

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def send(self, packet: Activation) -> None:
        """Put an activation into the buffer, unless its batch was skipped."""
        if not packet.skipped:  # numbered in order of arrival, as between processes
            self._buffer.put(replace(packet, batch=self._buffer.stats.arrived))


class BufferToPrevious:
    """Port to the previous stage that receives packets drawn from a replay buffer."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._drawn: dict[int, Activation] = {}

    def draw(self, turn: int, epoch: int) -> bool:
        """Draw a packet for a turn of the stage; return whether there was one.

        Args:
            turn: Number of the turn, which becomes the packet's batch number.
            epoch: Epoch of the stage in that turn, which becomes the packet's epoch.
        """
        packet = self._buffer.draw()
        if packet is not None:
            self._drawn[turn] = replace(packet, batch=turn, epoch=epoch)
        return packet is not None

    def receive(self, batch: int) -> Activation:
        """Return the packet that was drawn for a turn.

        Raises:
            PacketError: None was drawn.
        """
        if batch not in self._drawn:
            raise PacketError(f"no packet was drawn from the replay buffer for turn {batch}")
        return self._drawn.pop(batch)

    def state_dict(self) -> Tree:
        """Return the state of the buffer; between two turns all drawn packets are received."""
        return self._buffer.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a buffer."""
        self._buffer.load_state_dict(state)

    def send(self, packet: Gradient) -> None:
        """Refuse to send a gradient.

        Raises:
            PacketError: Always.
        """
        raise PacketError(f"a gradient of batch {packet.batch} was sent to a replay buffer")
