"""Source: gives batches to the first stage, in the process that reads the data."""

from hocket.transport.mailbox import Edge, MailboxPort
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, copy_tensors, tensors


class Source:
    """Previous stage of the first stage; sends batches and wants no gradients.

    Args:
        copies: Copy each batch, as the caller may fill the same memory with the next one.
    """

    def __init__(self, *, copies: bool = True) -> None:
        self._copies = copies
        self._edge = Edge("the source", "stage 0")
        self._to_first_stage = self._edge.to_next()

    def port(self) -> MailboxPort[Gradient, Activation]:
        """Build the port of the first stage."""
        return self._edge.to_previous()

    def send(
        self, batch: int, epoch: int, inputs: Tree, targets: Tree, share: float = 1.0
    ) -> Activation:
        """Send a batch to the first stage.

        Args:
            batch: Number of the batch, counted from 0 over all epochs.
            epoch: Number of its epoch, counted from 0.
            inputs: The inputs.
            targets: The targets.
            share: Fraction of the batch that these inputs are, where replicas divide it.

        Returns:
            The packet that was sent.
        """
        if self._copies:
            inputs, targets = copy_tensors((inputs, targets))
        packet = Activation(
            batch=batch,
            epoch=epoch,
            values=inputs,
            differentiable=(False,) * len(tensors(inputs)),
            targets=targets,
            share=share,
        )
        self._to_first_stage.send(packet)
        return packet
