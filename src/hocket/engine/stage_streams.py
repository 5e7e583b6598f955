"""Streams of a GPU on which the stages of one process compute at the same time."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeAlias

import torch

from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import Received, Sent, ToNext, ToPrevious
from hocket.tree import Tree, tensors


class StageStreams:
    """A stream for each stage.

    Within a tick stages wait for each other only where a packet is handed over. A tick begins
    after all that was queued before it, and what comes after it waits for all stages: so
    losses, weights and states are read between two ticks as without streams.

    Args:
        device: The GPU.
        count: Number of stages.
        shared: Use one stream for all of them.
    """

    def __init__(self, device: torch.device, count: int, *, shared: bool = False) -> None:
        self._device = device
        self._own = [torch.cuda.Stream(device) for _ in range(1 if shared else count)]
        self._streams = self._own * count if shared else self._own

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Context manager for one tick, also one that fails."""
        outside = torch.cuda.current_stream(self._device)
        for stream in self._own:
            stream.wait_stream(outside)
        try:
            yield
        finally:
            for stream in self._own:
                outside.wait_stream(stream)

    def stage(self, index: int) -> AbstractContextManager[Any]:
        """Return a context manager in which a stage computes."""
        return torch.cuda.stream(self._streams[index])


Events: TypeAlias = dict[int, torch.cuda.Event]
"""Events on a sending stream, by batch, after which a packet is complete."""


class StreamPort(Generic[Sent, Received]):
    """One side of an edge between two streams.

    Args:
        port: The port by which packets are handed over.
        sent: Events of the packets that this side sends.
        received: Events of the packets that the other side has sent.
    """

    def __init__(self, port: Any, sent: Events, received: Events) -> None:
        self._port = port
        self._sent = sent
        self._received = received

    def send(self, packet: Sent) -> None:
        """Send a packet, which is complete when the work queued so far is done."""
        self._sent[packet.batch] = torch.cuda.current_stream().record_event()
        self._port.send(packet)

    def receive(self, batch: int) -> Received:
        """Receive the packet of a batch; work that is queued later waits until it is complete.

        Its memory is not reused before that work is done.
        """
        packet: Received = self._port.receive(batch)
        event = self._received.pop(batch, None)  # a checkpoint has packets without events
        if event is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(event)
            for tensor in tensors(vars(packet)):
                if tensor.is_cuda:  # not lengths that stay on the host
                    tensor.record_stream(stream)
        return packet

    def state_dict(self) -> Tree:
        """Return the packets that were sent and not yet taken, as plain values."""
        return self._port.state_dict()

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again."""
        self._port.load_state_dict(state)


def on_streams(
    to_previous: Sequence[ToPrevious], to_next: Sequence[ToNext]
) -> tuple[list[ToPrevious], list[ToNext]]:
    """Return the ports of all stages, with events at each edge between two of them.

    Args:
        to_previous: Port of each stage to the one before; of the first one to the source.
        to_next: Port of each stage to the next one; the last one's leads nowhere.
    """
    count = len(to_previous) - 1
    activations: list[Events] = [{} for _ in range(count)]
    gradients: list[Events] = [{} for _ in range(count)]
    previous: list[ToPrevious] = [
        StreamPort[Gradient, Activation](port, *events)
        for port, *events in zip(to_previous[1:], gradients, activations, strict=True)
    ]
    following: list[ToNext] = [
        StreamPort[Activation, Gradient](port, *events)
        for port, *events in zip(to_next[:-1], activations, gradients, strict=True)
    ]
    return [to_previous[0], *previous], [*following, to_next[-1]]
