"""Examples served in batches, in an order that a seed and an epoch decide.

The order, the augmentation and so the bits of batch b in epoch e depend on (seed, e, b) and on
nothing else: neither on the batches asked for before nor on PyTorch's global generator.
"""

# Shapes: N examples, B batch.

from collections.abc import Callable, Iterator
from typing import Protocol, final

import torch
from torch import Generator, Tensor

from hocket.data.randomness import generator
from hocket.errors import DataError, OptionError, listed

Transform = Callable[[Tensor, Generator], Tensor]
"""Turns a batch of inputs (B, ...) into another; all its chance comes from the generator."""


class Examples(Protocol):
    """What can be served in batches."""

    def __len__(self) -> int:
        """Examples in one epoch."""

    def take(self, rows_B: Tensor, chance: Generator) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and targets (B, ...) of these rows, as tensors of their own."""


@final
class InMemory:
    """Examples that lie in two tensors, made ready batch by batch.

    Args:
        inputs: Of shape (N, ...); images best stay uint8, a quarter of the memory of float32.
        targets: Of shape (N, ...).
        transform: Applied to each batch of inputs; None leaves them as they are.

    Raises:
        DataError: Inputs and targets differ in number.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, transform: Transform | None = None
    ) -> None:
        if len(inputs) != len(targets):
            raise DataError(
                f"{len(inputs)} inputs and {len(targets)} targets do not pair up; "
                "give one target for each input"
            )
        self.inputs = inputs
        self.targets = targets
        self.transform = transform

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows_B: Tensor, chance: Generator) -> tuple[Tensor, Tensor]:
        """Copies of these rows, the inputs transformed."""
        inputs = self.inputs[rows_B]
        if self.transform is not None:
            inputs = self.transform(inputs, chance)
        return inputs, self.targets[rows_B]


@final
class Batches:
    """An iterable of (inputs, targets) that counts its epochs; iterate once for each epoch.

    Every batch consists of fresh tensors, which the receiver may keep or change.

    Args:
        examples: What to serve.
        batch_size: Examples in a batch; the last one is shorter where N is no multiple.
        seed: Decides the order and all augmentation.
        shuffle: Whether each epoch has an order of its own; False keeps that of the examples.
        drop_last: Whether to leave a shorter last batch out.

    Attributes:
        epoch: Number of the epoch that the next `iter()` will serve. It grows by one when an
            iteration *starts*, so one left early counts; set it to e to get epoch e again.

    Raises:
        DataError: There are no examples.
        OptionError: `batch_size` or `seed` is out of range, or no batch would remain.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        if len(examples) == 0:
            raise DataError("there are 0 examples to serve in batches; give at least 1")
        problems = []
        if batch_size < 1:
            problems.append(f"batch_size is {batch_size}; give 1 or more")
        if seed < 0:
            problems.append(f"seed is {seed}; give 0 or more")
        if drop_last and len(examples) < batch_size:
            problems.append(
                f"drop_last leaves none of {len(examples)} examples at batch_size "
                f"{batch_size}; lower batch_size or keep the short batch"
            )
        if problems:
            raise OptionError(listed("cannot serve these examples in batches", problems))
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0

    def __len__(self) -> int:
        """Batches in one epoch."""
        spare = 0 if self.drop_last else self.batch_size - 1
        return (len(self.examples) + spare) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.epoch
        self.epoch += 1
        return self.serve(epoch)

    def order(self, epoch: int) -> Tensor:
        """Rows in the order in which this epoch serves them, of shape (N,)."""
        if not self.shuffle:
            return torch.arange(len(self.examples))
        chance = generator(self.seed, "order", epoch)
        return torch.randperm(len(self.examples), generator=chance)

    def serve(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches `first`, `first + 1`, ... of an epoch; leaves the attribute `epoch` alone."""
        order_N = self.order(epoch)
        for batch in range(first, len(self)):
            rows_B = order_N[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self.examples.take(rows_B, generator(self.seed, "augmentation", epoch, batch))
