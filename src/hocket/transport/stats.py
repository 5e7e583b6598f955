"""Statistics of the packets that one stage sends and receives."""

from dataclasses import dataclass


@dataclass
class SendStats:
    """Counts of the activations that a stage has sent, and the loss by their codec.

    Attributes:
        plain_bytes: Size of the tensors before encoding.
        encoded_bytes: Size of the tensors after encoding.
        sent: Packets that a free-running stage has sent to another process.
        unsent: Packets that it has dropped instead, as the connection was not free.
        error: Norm of the error of the codec, divided by the norm of the values that were
            encoded, in the last packet measured.
        perplexity: Perplexity of the codes in the last packet measured: the number of codes
            that would be in use if all were used equally often. Mean over codebooks; None
            without codebooks.
    """

    plain_bytes: int = 0
    encoded_bytes: int = 0
    sent: int = 0
    unsent: int = 0
    error: float | None = None
    perplexity: float | None = None

    @property
    def compression(self) -> float | None:
        """Plain bytes divided by encoded bytes; None if nothing was encoded."""
        return self.plain_bytes / self.encoded_bytes if self.encoded_bytes else None


@dataclass
class ReceiveStats:
    """Counts of the packets that arrived at a replay buffer, and of its draws.

    Attributes:
        arrived: Packets that arrived.
        arrived_bytes: Their size, values as they were encoded, and targets.
        drawn: Draws that gave a packet.
        reused: Those draws that gave a packet drawn before.
        dropped: Packets that were overwritten without having been drawn.
        lost: Packets that were sent and did not arrive, or arrived and were lost with the
            memory of a process that was killed.
        orphaned: Packets from turns of the previous stage which that stage, restarted from a
            checkpoint, has done again.
        refused: Draws that gave no packet: none had arrived, or all had reached the limit.
        buffer_bytes: Largest size of all packets in the buffer, in bytes.
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
