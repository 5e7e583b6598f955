"""Batches as loaders give them, turned into pairs of inputs and targets."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from hocket.errors import DataError
from hocket.options import require_functions
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
            require_functions(split_batch=split_batch)
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
        """Return the inputs and targets of one batch.

        Args:
            batch: Object that the loader has given.
            where: Subject of the message of an error.

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


def first_samples(inputs: Tree, count: int) -> Tree:
    """Return the first samples of a batch, where all tensors of its size have a row for each.

    Args:
        inputs: Inputs of the batch.
        count: Number of samples.
    """
    size = count_samples(inputs)

    def first(value: Tensor) -> Tensor:
        if not value.dim() or len(value) != size:
            return value
        return value[:count].clone()  # a view would keep the memory of the whole batch

    return map_tensors(first, inputs)


def require_batches(name: str, batches: object) -> None:
    """Refuse data that are no batches, or that a sampler divides among processes.

    Args:
        name: Name of the data, for the message.
        batches: The data.

    Raises:
        DataError: They are, or cannot be iterated.
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
    for part in (*places, getattr(batches, "dataset", None)):
        # Their names in DistributedSampler, and in the samplers and data sets of accelerate.
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


def refuse_single_sample(error: BaseException) -> None:
    """Refuse a batch of one sample if it is the cause of an error.

    Args:
        error: Error of a tick.

    Raises:
        DataError: A layer cannot train on a batch of one sample.
    """
    if "more than 1 value per channel" in str(error):  # said by PyTorch's BatchNorm
        refusal = DataError(
            f"a batch of one sample cannot pass BatchNorm in training ({error}); use another "
            "batch size, so that the last batch has more, or leave it out: "
            "DataLoader(drop_last=True)"
        )
        for note in getattr(error, "__notes__", ()):
            refusal.add_note(note)
        raise refusal from error
