"""Ports whose packets are written by a codec, and what that saves and loses.

The writing belongs to the method of training, wherever its stages run: in one process it is
done all the same, and equal bits come out.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from hocket.transport.codecs import Codec, Decoder, Encoder
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, map_tensors, tensors

Sent = TypeVar("Sent", Activation, Gradient, contravariant=True)
Received = TypeVar("Received", Activation, Gradient, covariant=True)

MEASURED = 16
"""The error is measured of every so many packets, as it takes a decoding."""


class PortLike(Protocol[Sent, Received]):
    """One side of an edge."""

    def send(self, packet: Sent) -> None:
        """Send a packet."""

    def receive(self, batch: int) -> Received:
        """The packet of a batch."""

    def state_dict(self) -> Tree:
        """What was sent and not yet taken, as plain values."""

    def load_state_dict(self, state: Tree) -> None:
        """Send what had been sent and not yet taken."""


@dataclass
class SendStats:
    """What a stage has sent ahead, and what was left of it.

    Attributes:
        plain_bytes: As they were.
        encoded_bytes: As they were written.
        sent: Packets that have left for a stage that runs freely in another process.
        unsent: Packets that were dropped where they were made, as the way was not free.
        error: Norm of what is lost beside that of what was sent, the last one measured.
        perplexity: Codes in use, as if evenly, in the last packet measured; mean over
            codebooks, None without them.
    """

    plain_bytes: int = 0
    encoded_bytes: int = 0
    sent: int = 0
    unsent: int = 0
    error: float | None = None
    perplexity: float | None = None

    @property
    def compression(self) -> float | None:
        """How many times fewer bytes were written; None if there were none."""
        return self.plain_bytes / self.encoded_bytes if self.encoded_bytes else None


class EncodedPort(Generic[Sent, Received]):
    """A port that writes what it sends and reads what it receives; targets stay as they are.

    Args:
        port: The port.
        sends: How values are written; all of floating point, each place in them for itself.
        takes: How values that come were written.
        seed: For codecs that draw.
        ledger: Where what was sent is noted, if anywhere.
        alone: Whether packets may be lost, or read again, so that each must be whole.
    """

    def __init__(
        self,
        port: PortLike[Sent, Received],
        sends: Codec,
        takes: Codec,
        seed: int,
        ledger: SendStats | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._port: PortLike[Sent, Received] = port
        self._sends = sends
        self._takes = takes
        self._seed = seed
        self._ledger = ledger
        self._alone = alone
        self._encoders: list[Encoder] = []
        self._proofs: list[Decoder] = []
        self._decoders: list[Decoder] = []

    def send(self, packet: Sent) -> None:
        """Send a packet with values that are written."""
        if packet.skipped:
            self._port.send(packet)
            return
        parts = [t for t in tensors(packet.values) if t.is_floating_point()]
        while len(self._encoders) < len(parts):
            self._encoders.append(self._new_encoder())
            self._proofs.append(self._sends.decoder())
        coded = [
            encoder.encode(part) for encoder, part in zip(self._encoders, parts, strict=False)
        ]
        if self._ledger is not None:
            self._note(self._ledger, packet.batch, parts, coded)
        # An empty tensor keeps the place of one that is written.
        places = map_tensors(_place, packet.values)
        values: Any = (places, coded)
        self._port.send(replace(packet, values=values))

    def receive(self, batch: int) -> Received:
        """The packet of a batch with its values as they were read."""
        packet = self._port.receive(batch)
        if packet.skipped:
            return packet
        values: Any = packet.values
        places, coded = values
        while len(self._decoders) < len(coded):
            self._decoders.append(self._takes.decoder())
        read = iter(
            decoder.decode(part) for decoder, part in zip(self._decoders, coded, strict=False)
        )

        def found(place: Tensor) -> Tensor:
            return next(read) if place.is_floating_point() else place

        return replace(packet, values=map_tensors(found, places))

    def state_dict(self) -> Tree:
        """What was sent and not yet taken, as written, and what the codecs have learnt."""
        return {
            "port": self._port.state_dict(),
            "encoders": [encoder.state_dict() for encoder in self._encoders],
            "proofs": [decoder.state_dict() for decoder in self._proofs],
            "decoders": [decoder.state_dict() for decoder in self._decoders],
        }

    def load_state_dict(self, state: Tree) -> None:
        """Send what had been sent and not yet taken, and go on from what had been learnt."""
        self._port.load_state_dict(state["port"])
        for encoder in state["encoders"]:
            self._encoders.append(self._new_encoder())
            self._encoders[-1].load_state_dict(encoder)
        for own, codec, found in (
            (self._proofs, self._sends, state["proofs"]),
            (self._decoders, self._takes, state["decoders"]),
        ):
            for decoder in found:
                own.append(codec.decoder())
                own[-1].load_state_dict(decoder)

    def _new_encoder(self) -> Encoder:
        return self._sends.encoder(self._seed + len(self._encoders), alone=self._alone)

    def _note(
        self, ledger: SendStats, batch: int, parts: list[Tensor], coded: list[Tree]
    ) -> None:
        ledger.plain_bytes += sum(part.nbytes for part in parts)
        ledger.encoded_bytes += sum(tensor.nbytes for tensor in tensors(coded))
        read = [decoder.decode(own) for decoder, own in zip(self._proofs, coded, strict=False)]
        if batch % MEASURED == 0 and parts:
            lost = _norm([a.float() - b.float() for a, b in zip(parts, read, strict=True)])
            ledger.error = lost / (_norm([part.float() for part in parts]) or 1.0)
            ledger.perplexity = _perplexity(coded)


def _place(tensor: Tensor) -> Tensor:
    return tensor.new_empty(0) if tensor.is_floating_point() else tensor


def _norm(parts: list[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for part in parts))


def _perplexity(coded: list[Tree]) -> float | None:
    """Exponential of the entropy of the indices, mean over all codebooks."""
    found = [
        math.exp(float(torch.special.entr(use.unique(return_counts=True)[1] / len(use)).sum()))
        for own in coded
        if isinstance(own, dict) and "indices" in own
        for use in own["indices"]
    ]
    return sum(found) / len(found) if found else None
