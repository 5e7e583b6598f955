"""Batches of examples, in an order that depends on a seed and an epoch only.

The order and the augmentation, and so the bits of batch b in epoch e, depend only on
(seed, e, b): neither on the batches served before nor on PyTorch's global generator.
"""

# Shapes: N examples, B batch.

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Protocol, final

import torch
from torch import Generator, Tensor

from hocket.data.randomness import divide_rows, make_generator, send_to_device
from hocket.errors import DataError, OptionError, raise_problems
from hocket.options.ranges import wrong_counts

Transform = Callable[[Tensor, Generator], Tensor]
"""Function from a batch of inputs (B, ...) to another; it draws from the generator only."""
AHEAD = 2
"""Batches for each worker that are ready or in work."""


class Examples(Protocol):
    """Collection of examples that can be served in batches."""

    def __len__(self) -> int:
        """Return the number of examples in one epoch."""

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs (B, ...) and targets (B, ...) of these rows as new tensors.

        Several threads call it at the same time if batches have workers.
        """


def move_examples(examples: Examples, device: torch.device) -> Examples:
    """Return the same examples on a device, if they can be there; files stay on the host."""
    move: Callable[[torch.device], Examples] = getattr(examples, "to", lambda _: examples)
    return move(device)


@final
@dataclass(eq=False, repr=False)
class InMemory:
    """Examples in two tensors, transformed batch by batch.

    Args:
        inputs: Tensor (N, ...); keep images in uint8, which need a quarter of the memory.
        targets: Tensor (N, ...).
        transform: Applied to each batch of inputs; None leaves them as they are.

    Raises:
        DataError: The numbers of inputs and targets differ.
    """

    inputs: Tensor
    targets: Tensor
    transform: Transform | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise DataError(
                f"{len(self.inputs)} inputs and {len(self.targets)} targets do not pair up; "
                "give one target for each input"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows_B: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
        """Return copies of these rows, (B, ...), with transformed inputs."""
        rows_B = send_to_device(rows_B, self.inputs.device)
        inputs = self.inputs[rows_B]
        if self.transform is not None:
            inputs = self.transform(inputs, rng)
        return inputs, self.targets[rows_B]

    def to(self, device: torch.device) -> "InMemory":
        """Return the same examples on a device, where batches are made of them."""
        return InMemory(self.inputs.to(device), self.targets.to(device), self.transform)

    def divide(self, held: int, test: "InMemory") -> tuple["InMemory", "InMemory"]:
        """Return the rest, and `held` examples drawn at random with the transform of `test`."""
        rest, held_out = divide_rows(len(self), held)
        return (
            InMemory(self.inputs[rest], self.targets[rest], self.transform),
            InMemory(self.inputs[held_out], self.targets[held_out], test.transform),
        )


@final
@dataclass(eq=False, repr=False)
class Batches:
    """Loader of batches (inputs, targets) that counts epochs; iterate once for each epoch.

    Every batch consists of new tensors, which the caller may keep or change.

    Args:
        examples: Examples to serve.
        batch_size: Number of examples in a batch; the last batch may be shorter.
        seed: Seed of order and augmentation.
        shuffle: Whether each epoch has its own order; False keeps the order of the examples.
        drop_last: Whether to omit a shorter last batch.
        workers: Number of threads that prepare the next batches; 0 to prepare each batch only
            when it is needed. Batches have the same bits with any number.

    Attributes:
        epoch: Number of the epoch that the next `iter()` will serve. It increases when an
            iteration *starts*, so an unfinished one counts; set it to e to repeat epoch e.

    Raises:
        DataError: There are no examples.
        OptionError: `batch_size`, `seed` or `workers` is out of range, or no batch would
            remain.
    """

    examples: Examples
    batch_size: int
    _: KW_ONLY
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    workers: int = 0
    epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if len(self.examples) == 0:
            raise DataError("there are 0 examples to serve in batches; give at least 1")
        problems = wrong_counts(1, batch_size=self.batch_size)
        problems += wrong_counts(0, seed=self.seed, workers=self.workers)
        if not problems and self.drop_last and len(self.examples) < self.batch_size:
            problems.append(
                f"drop_last leaves none of {len(self.examples)} examples at batch_size "
                f"{self.batch_size}; lower batch_size or keep the short batch"
            )
        raise_problems(OptionError, "cannot serve these examples in batches", problems)

    def with_options(self, **options: Any) -> "Batches":
        """Return batches, from epoch 0 on, in which some arguments of this class differ."""
        return replace(self, **options)

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        rounding = 0 if self.drop_last else self.batch_size - 1
        return (len(self.examples) + rounding) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.epoch
        self.epoch += 1
        return self.serve(epoch)

    def order(self, epoch: int) -> Tensor:
        """Return the rows in the order in which this epoch serves them, (N,), on the CPU."""
        if not self.shuffle:
            return torch.arange(len(self.examples), device="cpu")
        rng = make_generator(self.seed, "order", epoch)
        return torch.randperm(len(self.examples), generator=rng, device="cpu")

    def serve(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches `first`, `first + 1`, ... of an epoch without changing `self.epoch`.

        An error in preparing a batch is raised when its turn comes.
        """
        take, numbers = partial(self._take, epoch, self.order(epoch)), range(first, len(self))
        if not self.workers:
            yield from map(take, numbers)
            return

        # Threads prepare some later batches meanwhile, and not processes: reading files,
        # decoding images and PyTorch's operations let other threads run, no tensor is copied to
        # another process, and nothing is forked.
        waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="hocket-data")
        try:
            for number in numbers:
                waiting.append(pool.submit(take, number))
                if len(waiting) == AHEAD * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # also if the rest is not wanted
            pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, epoch: int, order_N: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        rows_B = order_N[batch * self.batch_size : (batch + 1) * self.batch_size]
        return self.examples.take(
            rows_B, make_generator(self.seed, "augmentation", epoch, batch)
        )
