"""A ring of the last packets at an edge, from which a stage draws at its own pace.

Nobody waits here: what comes overwrites the oldest, and who draws gets something old again
when nothing new has come. Both are counted.
"""

import threading
from dataclasses import dataclass, replace

from hocket.errors import PacketError
from hocket.methods.method import Replay
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, tensors


@dataclass
class ReceiveStats:
    """What became of the packets of an edge.

    Attributes:
        arrived: Packets that came.
        arrived_bytes: What they held, as they were written, targets too.
        drawn: Times that one was drawn.
        reused: Those of them at which it had been drawn before.
        dropped: Packets that were overwritten without ever having been drawn.
        lost: Packets that were sent and did not come, or came and were forgotten, as this
            process or the one before was killed.
        orphaned: Packets that came of turns which the stage before, started again, has
            forgotten.
        refused: Times that nothing could be drawn, as nothing had come or all was used up.
        buffer_bytes: What the packets took at the most, as they were kept.
    """

    arrived: int = 0
    arrived_bytes: int = 0
    drawn: int = 0
    reused: int = 0
    dropped: int = 0
    lost: int = 0
    orphaned: int = 0
    refused: int = 0
    buffer_bytes: int = 0


@dataclass
class _Slot:
    packet: Activation
    drawn: int = 0

    def __post_init__(self) -> None:
        parts = (*tensors(self.packet.values), *tensors(self.packet.targets))
        self.size = sum(part.nbytes for part in parts)


class ReplayBuffer:
    """The last packets of an edge (DGL, arXiv 1901.08164, algorithm 2).

    A draw gives the least used packet, and of those the freshest. One thread may put while
    another one draws.

    Args:
        rule: How many packets there is room for, and how they are drawn.
    """

    def __init__(self, rule: Replay) -> None:
        self.stats = ReceiveStats()
        self._rule = rule
        self._slots: list[_Slot] = []
        self._next = 0  # where the next packet goes: over the oldest, once all are filled
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, packet: Activation) -> None:
        """Keep a packet, in the place of the oldest one if there is no other room."""
        slot = _Slot(packet)
        with self._changed:
            self._keep(slot)
            self._changed.notify_all()

    def state_dict(self) -> Tree:
        """The packets with how often each was drawn, in their places, and what was counted."""
        with self._changed:
            return {
                "slots": [
                    {"packet": vars(slot.packet), "drawn": slot.drawn} for slot in self._slots
                ],
                "next": self._next,
                "stats": vars(self.stats).copy(),
            }

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what another buffer of the same rule held."""
        with self._changed:
            self._slots = [
                _Slot(Activation(**slot["packet"]), slot["drawn"]) for slot in state["slots"]
            ]
            self._next = state["next"]
            vars(self.stats).update(state["stats"])
            self._changed.notify_all()

    def _keep(self, slot: _Slot) -> None:
        self._count_lost(slot.packet.batch)
        self.stats.arrived += 1
        self.stats.arrived_bytes += slot.size
        if len(self._slots) < self._rule.buffer:
            self._slots.append(slot)
        else:
            self.stats.dropped += self._slots[self._next].drawn == 0
            self._slots[self._next] = slot
        self._next = (self._next + 1) % self._rule.buffer
        held = sum(slot.size for slot in self._slots)
        self.stats.buffer_bytes = max(self.stats.buffer_bytes, held)

    def _count_lost(self, number: int) -> None:
        """Compare the number of a packet, which its sender counts, with what is known of it."""
        missed = number - (self.stats.arrived + self.stats.lost - self.stats.orphaned)
        if missed > 0:
            self.stats.lost += missed
        else:
            self.stats.orphaned -= missed

    @property
    def waiting(self) -> int:
        """Packets that are there and have not been drawn."""
        return sum(slot.drawn == 0 for slot in self._slots)

    def draw(self) -> Activation | None:
        """A packet, which stays; None if nothing has come, or all of it is used up."""
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
        """Wait until something can be drawn, or has come that was never drawn; if it has."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.waiting > 0 if fresh else self._best() is not None, timeout_s
            )

    def _best(self) -> _Slot | None:
        """What would be drawn."""
        places = (self._slots[place] for place in self._freshest())
        slot = min(places, key=self._used, default=None)
        limit = self._rule.reuse
        return None if slot is None or (limit and self._used(slot) >= limit) else slot

    def _used(self, slot: _Slot) -> int:
        """How often a packet counts as used.

        The official code counts from 1, which allows one use less, and in a ring of one it
        does not count.
        """
        if self._rule.sampler == "official":
            return 1 + (slot.drawn if self._rule.buffer > 1 else 0)
        return slot.drawn

    def _freshest(self) -> list[int]:
        """The places of packets, the freshest first.

        The official code begins with the place that is to be written next, which holds the
        oldest packet of a full ring.
        """
        count = len(self._slots)
        skewed = self._rule.sampler == "official" and count == self._rule.buffer
        start = self._next if skewed else self._next - 1
        return [(start - back) % count for back in range(count)]


class OneWayPort:
    """A way on which nothing comes back."""

    def receive(self, batch: int) -> Gradient:
        """There is nothing to receive: PacketError."""
        raise PacketError(f"a gradient of batch {batch} was expected from behind a buffer")

    def state_dict(self) -> Tree:
        """Nothing is under way: what was sent is the buffer's, or lost."""
        return []

    def load_state_dict(self, state: Tree) -> None:
        """Nothing was under way."""


class BufferToNext(OneWayPort):
    """What the stage above an edge sees: what it sends is kept or overwritten."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def send(self, packet: Activation) -> None:
        """Leave an activation; there is nothing to draw in a batch that is skipped."""
        if not packet.skipped:  # numbered as it leaves, as where it goes to another process
            self._buffer.put(replace(packet, batch=self._buffer.stats.arrived))


class BufferToPrevious:
    """What the stage below an edge sees: what was drawn for each of its turns.

    Args:
        buffer: What it draws from.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._turns: dict[int, Activation] = {}

    def draw(self, turn: int, epoch: int) -> bool:
        """Draw for a turn of the stage, which falls into this epoch of its own; if it can."""
        packet = self._buffer.draw()
        if packet is not None:
            self._turns[turn] = replace(packet, batch=turn, epoch=epoch)
        return packet is not None

    def receive(self, batch: int) -> Activation:
        """What was drawn for a turn.

        Raises:
            PacketError: Nothing was.
        """
        if batch not in self._turns:
            raise PacketError(f"nothing was drawn from the buffer for turn {batch}")
        return self._turns.pop(batch)

    def state_dict(self) -> Tree:
        """What is in the buffer; between two turns nothing else is drawn and not received."""
        return self._buffer.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Draw on from what was in the buffer."""
        self._buffer.load_state_dict(state)

    def send(self, packet: Gradient) -> None:
        """Nothing takes it: PacketError."""
        raise PacketError(f"a gradient of batch {packet.batch} was sent back into a buffer")
