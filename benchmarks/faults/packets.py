"""Packets with errors."""

from dataclasses import replace

from hocket.distributed import wire
from hocket.transport.processes.backend import Lane
from hocket.transport.processes.message import OutgoingMessage


def damage_packet(message: OutgoingMessage, part: int = -1, bit: int = 0) -> OutgoingMessage:
    """Return a copy of a message with one bit flipped.

    Args:
        message: The message.
        part: Index of the part; the first part is the header.
        bit: Index of the bit in that part.
    """
    backend, tensor, lane = message.parts[part]
    damaged = tensor.clone()
    wire.tensor_bytes(damaged)[bit // 8] ^= 1 << bit % 8
    parts = list(message.parts)
    parts[part] = backend, damaged, lane
    return replace(message, parts=parts)


def relabel_packet(message: OutgoingMessage, number: int) -> OutgoingMessage:
    """Return a copy of a message with the number of another batch."""
    (backend, first, lane), *others = message.parts
    header = wire.decode_header(first, lambda _: others.pop(0)[1])
    first, rest = wire.encode_header(header | {"number": number})
    parts = [(backend, first, lane)]
    if rest is not None:
        parts.append((backend, rest, Lane.LATE))
    return replace(message, number=number, parts=[*parts, *others])
