"""Packets that are not what was sent."""

from dataclasses import replace

from hocket.distributed import wire
from hocket.transport.connection import OutgoingMessage


def damaged(shipment: OutgoingMessage, part: int = -1, bit: int = 0) -> OutgoingMessage:
    """The same with another bit in one of its parts: the first is its header."""
    by, tensor = shipment.parts[part]
    other = tensor.clone()
    wire.tensor_bytes(other)[bit // 8] ^= 1 << bit % 8
    parts = list(shipment.parts)
    parts[part] = by, other
    return replace(shipment, parts=parts)


def mislabelled(shipment: OutgoingMessage, number: int) -> OutgoingMessage:
    """The same under the number of another batch."""
    (by, first), *others = shipment.parts
    rest = others.pop(0)[1] if wire.remaining_bytes(first) else None
    header = wire.decode_header(first, rest) | {"number": number}
    parts = [(by, part) for part in wire.encode_header(header) if part is not None]
    return replace(shipment, number=number, parts=[*parts, *others])
