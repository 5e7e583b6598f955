"""Messages between two processes, as they are sent and as they were received."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.transport.packet import Activation, Gradient
from hocket.transport.processes.posted_receives import Part
from hocket.transport.processes.sequence_check import ADVICE
from hocket.tree import Tree, map_tensors


@dataclass(frozen=True)
class Message:
    """A message as it was received.

    Attributes:
        route: Receiver and sender, as error messages name them.
        header: Its values by name; nested tensors are references into ``tensors``.
        tensors: The tensors that were sent with it.
    """

    route: str
    header: dict[str, Any]
    tensors: list[Tensor]

    def value(self, name: str, kind: type) -> Any:
        """Return the value of this name and type.

        Raises:
            TransitError: There is none.
        """
        try:
            return wire.header_value(self.header, name, kind)
        except PacketError as error:
            raise self.error(str(error)) from None

    def tree(self, name: str, device: torch.device) -> Tree:
        """Return the nested tensors of this name, on a device.

        Raises:
            TransitError: There are none.
        """
        structures = self.value("trees", dict)
        if name not in structures:
            raise self.error(f"a packet arrived with a malformed header: it has no {name!r}")
        try:
            tree = wire.decode_tree(structures[name], self.tensors)
        except PacketError as error:
            raise self.error(str(error)) from None
        except RecursionError:
            raise self.error("a packet has a structure that is too deep") from None
        return map_tensors(lambda t: t.to(device), tree)

    def error(self, text: str) -> TransitError:
        """Build the error for contents that are not those of such a message."""
        return TransitError(
            f"{self.route}: {self.header['kind']} {self.header['number']}: {text}; {ADVICE}"
        )


@dataclass(frozen=True)
class OutgoingMessage:
    """A message as it is sent.

    Attributes:
        kind: Kind of the message, such as ``activation``.
        number: Its number among the messages of that kind, such as that of the batch.
        parts: All that is sent, in order: the header, the rest of it if it is long, what fills
            the posted receives, and tensors that were not expected.
    """

    kind: str
    number: int
    parts: list[Part]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(tensor.nbytes for _, tensor, _ in self.parts)

    def begin(self) -> Callable[[], None]:
        """Start sending; return a function that waits until it is sent.

        That function also keeps the tensors alive until then.
        """
        started = [
            (backend, backend.send(tensor, lane), tensor)
            for backend, tensor, lane in self.parts
        ]

        def wait() -> None:
            for backend, handle, _ in started:
                backend.wait(handle)

        return wait


def read_activation(message: Message, device: torch.device) -> Activation:
    """Build the activation that a message holds, on a device.

    Raises:
        TransitError: The message does not hold one.
    """
    differentiable = message.value("differentiable", list)
    if any(type(flag) is not bool for flag in differentiable):
        raise message.error(f"'differentiable' is {differentiable!r:.60}, wanted booleans")
    return Activation(
        batch=message.value("number", int),
        epoch=message.value("epoch", int),
        values=message.tree("values", device),
        differentiable=tuple(differentiable),
        targets=message.tree("targets", device),
        share=message.value("share", float),
    )


def read_gradient(message: Message, device: torch.device) -> Gradient:
    """Build the gradient that a message holds, on a device.

    Raises:
        TransitError: The message does not hold one.
    """
    values = message.tree("values", device)
    if values is not None and not isinstance(values, tuple):
        raise message.error(f"the gradients are a {type(values).__name__}, wanted a tuple")
    return Gradient(message.value("number", int), values)
