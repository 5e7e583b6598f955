"""Batches of loaders: checked, split into inputs and targets, and brought to the device."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from hocket.distributed.failures.phases import Phase
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import DataError, Problems, warn
from hocket.options.require import wrong_functions
from hocket.partition.inputs import as_inputs, as_tree, describe_value
from hocket.tree import Tree, count_samples, map_tensors

SplitBatch: TypeAlias = Callable[[Any], tuple[Tree, Tree]]
"""Returns the inputs and targets of what a loader gives for a batch."""

LABELS = "labels"
"""Key of the targets in a batch that is a mapping, as in the data of transformers."""


class BatchSplitter:
    """Splits batches into inputs and targets, and checks them.

    Args:
        network: The network; if its forward has a parameter ``labels``, the labels of a batch
            that is a mapping stay among its inputs.
        split_batch: Returns the inputs and targets of a batch; None for batches that are pairs,
            or mappings with labels.

    Raises:
        OptionError: `split_batch` is no function.
    """

    def __init__(self, network: nn.Module, split_batch: SplitBatch | None) -> None:
        self._takes_labels = LABELS in inspect.signature(network.forward).parameters
        if not isinstance(split_batch, type):  # such as tuple
            Problems(wrong_functions(split_batch=split_batch)).raise_together("")
        self._split_batch = split_batch

    def pairs(self, batches: Iterable[Any]) -> Iterator[tuple[Tree, Tree]]:
        """Yield the inputs and targets of each batch.

        Raises:
            DataError: A batch cannot be split, or its inputs have no tensors.
        """
        for number, batch in enumerate(batches):
            yield self._split(batch, f"batch {number}")

    def inputs(self, batches: Iterable[Any]) -> Iterator[tuple[Tree, Tree]]:
        """Yield the inputs of each batch, and None for its targets.

        A batch may be inputs alone, as a tensor, a list of one tensor or a mapping without
        labels, or have targets that are not used. A pair of tensors counts as inputs and
        targets.

        Raises:
            DataError: A batch cannot be split, or its inputs have no tensors.
        """
        for number, batch in enumerate(batches):
            pair = batch if self._split_batch is not None else _without_targets(batch)
            yield self._split(pair, f"batch {number}")[0], None

    def count_samples(self, batch: Any) -> int:
        """Return the number of samples of one batch.

        Raises:
            DataError: The batch cannot be split.
        """
        return count_samples(self._split(batch, "a batch")[0])

    def _split(self, batch: Any, where: str) -> tuple[Tree, Tree]:
        """Return the inputs and targets of one batch; `where` begins the message of an error.

        Raises:
            DataError: The batch cannot be split.
        """
        if self._split_batch is not None:
            batch, where = self._split_batch(batch), f"split_batch's result for {where}"
        elif isinstance(batch, Mapping) and LABELS in batch:
            inputs = {k: v for k, v in batch.items() if k != LABELS or self._takes_labels}
            batch = inputs, batch[LABELS]
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise DataError(
                f"{where} is {describe_value(batch)}; a batch is a pair (inputs, targets), or "
                f"a mapping with {LABELS!r}; for others give the trainer "
                "split_batch=lambda batch: (inputs, targets)"
            )
        inputs, targets = batch
        return as_inputs(inputs, where), as_tree(targets)


def _without_targets(batch: Any) -> Any:
    """Return a pair with no targets if a batch is inputs alone, and the batch if not."""
    if isinstance(batch, list | tuple) and len(batch) == 1:  # as of a TensorDataset
        return batch[0], None
    alone = isinstance(batch, Tensor) or (isinstance(batch, Mapping) and LABELS not in batch)
    return (batch, None) if alone else batch


def read(batches: Iterable[Any], world: World | SoloWorld) -> Iterator[Any]:
    """Yield batches; other processes hear of the phase while one is read."""
    iterator = iter(batches)
    while True:
        with world.in_phase(Phase.READING):
            batch = list(itertools.islice(iterator, 1))
        if not batch:
            return
        yield batch[0]


class Upload:
    """Copies batches to a device.

    To a GPU they are copied out of pinned memory, in another stream: the copy of a batch
    overlaps with the computations that are queued, and only what uses the batch waits for it.

    Args:
        device: The device.
        channels_last: Give 4-dimensional tensors that memory format.
    """

    def __init__(self, device: torch.device, *, channels_last: bool) -> None:
        self._device = device
        self._channels_last = channels_last
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._warned = False

    def __call__(self, values: Tree) -> Tree:
        """Return values on the device, with tensors of shape (B, ...)."""
        return map_tensors(self._move, values)

    def _move(self, value: Tensor) -> Tensor:
        # Losses of several stages cannot each go backward through a graph that comes with it,
        # and another process cannot at all.
        if value.grad_fn is not None:
            if not self._warned:
                self._warned = True
                warn(
                    "a batch has a tensor with a graph of autograd, through which no gradient "
                    "flows back; make what computes the tensor a part of the network if it is "
                    "to be trained, and call it under torch.no_grad() if it is not"
                )
            value = value.detach()
        images = self._channels_last and value.dim() == 4
        if value.device == self._device and not images:
            return value
        memory_format = torch.channels_last if images else torch.preserve_format
        on_host = value.is_cpu and value.layout == torch.strided
        if self._stream is None or not on_host:
            moved = value.to(self._device)
            return moved.to(memory_format=memory_format) if images else moved
        # Copy out of pinned memory, in the stream of uploads.
        # A copy, as a loader may fill its memory again; PyTorch keeps it until it is read.
        pinned = torch.empty_like(value, memory_format=memory_format, pin_memory=True)
        pinned.copy_(value)
        user = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
        user.wait_stream(self._stream)
        moved.record_stream(user)  # so that its memory is not reused before that is done
        return moved


def require_batches(name: str, batches: object) -> None:
    """Refuse data that are no batches, or that a sampler divides among processes.

    Raises:
        DataError: They cannot be iterated, or are a data set, or are divided among processes.
    """
    if not (hasattr(batches, "__iter__") or hasattr(type(batches), "__getitem__")):
        raise DataError(
            f"the {name} are {batches!r}; give a DataLoader, or another iterable of batches"
        )
    if isinstance(batches, Dataset) and not isinstance(batches, IterableDataset):
        raise DataError(
            f"the {name} are a data set, {type(batches).__name__}, whose samples would be the "
            "batches; give DataLoader(dataset, batch_size=32), or with batch_size=None if its "
            "items are batches"
        )
    sampler = getattr(batches, "batch_sampler", None)
    places = (sampler, getattr(sampler, "sampler", None), getattr(batches, "sampler", None))
    for part in (*places, getattr(batches, "dataset", None), getattr(batches, "state", None)):
        # Their names in DistributedSampler, and in what accelerate prepares.
        parts = getattr(part, "num_replicas", getattr(part, "num_processes", 1))
        if isinstance(parts, int) and parts > 1:
            raise DataError(
                f"the {name} are divided by {type(part).__name__} into {parts} parts, of which "
                "each process would read one; give the whole DataLoader without it: only the "
                "processes of the first stage read data, and its replicas divide each batch"
            )


def length_of(batches: object) -> int | None:
    """Return the number of batches of a loader; None if it does not know."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a DataLoader of an IterableDataset has no len
        return None
