"""Where batches enter: what stands before the first stage, in the process that reads them."""

from hocket.transport.mailbox import Edge, MailboxToPrevious
from hocket.transport.packet import Activation
from hocket.tree import Tree, copy_tensors, tensors


class Source:
    """Hands batches to the first stage, and wants no gradients of them."""

    def __init__(self) -> None:
        self._edge = Edge("the source", "stage 0")

    def port(self) -> MailboxToPrevious:
        """The port of the first stage."""
        return self._edge.to_previous()

    def send(
        self, batch: int, epoch: int, inputs: Tree, targets: Tree, share: float = 1.0
    ) -> Activation:
        """Send a batch, or what part of it is this replica's; gives the packet."""
        # Copied: the caller may fill the same memory with the next batch.
        values, targets = copy_tensors((inputs, targets))
        packet = Activation(
            batch=batch,
            epoch=epoch,
            values=values,
            differentiable=tuple(False for _ in tensors(inputs)),
            targets=targets,
            share=share,
        )
        self._edge.to_next().send(packet)
        return packet
