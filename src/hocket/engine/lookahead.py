"""The number of batches to come, announced by the first stage, which alone reads the data."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from torch import Tensor

from hocket.engine.engine import Batch
from hocket.stage.passes.forward_only import Prediction, predict_batch
from hocket.stage.stage import Stage
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import Tree, copy_tensors

NO_BATCH: Batch = (None, None)
"""Placeholder for a batch in processes that do not read the data."""

Evaluated: TypeAlias = tuple[Tree, Tree, Tensor | None]
"""Message of an evaluation: values, targets, and the ensemble of exits so far."""


class BatchAnnouncer:
    """Gives batches at the first stage, which reads ahead, and placeholders at the others.

    Every stage continues until the batch in the lookahead, and hears of later ones in time.

    Args:
        previous: Connection to the stage before; None for the first stage.
        following: Connection to the next stage; None for the last stage.
    """

    def __init__(self, previous: Connection | None, following: Connection | None) -> None:
        self._previous = previous
        self._following = following
        self._openings = 0

    def __call__(
        self, batches: Iterable[Batch], lookahead: Lookahead, start: int, ahead: int
    ) -> Iterator[Batch]:
        """Return batches or placeholders.

        Args:
            batches: Batches of the first stage; not used by the others.
            lookahead: Batches that are known to enter, which is kept up to date.
            start: Number of the first batch.
            ahead: Number of batches that the first stage reads ahead.
        """
        # The stages after the first one hear how many batches come, and pass it on.
        number, self._openings = self._openings, self._openings + 1
        if self._previous is not None:
            opening = self._previous.receive("opening", number)
            lookahead.end_batch = opening.number("end_batch")
            self._open(number, lookahead)
            while start < lookahead.end_batch:
                yield NO_BATCH
                start += 1
            return

        # The first stage reads ahead.
        # Copied: the loader may fill the same memory with the next batch.
        iterator = map(copy_tensors, batches)
        queue = deque(islice(iterator, ahead))
        lookahead.end_batch = start + len(queue)
        self._open(number, lookahead)
        while queue:
            yield queue.popleft()
            start += 1
            queue.extend(islice(iterator, 1))
            lookahead.end_batch = start + len(queue)

    def _open(self, number: int, lookahead: Lookahead) -> None:
        if self._following is not None:
            self._following.send("opening", number, end_batch=lookahead.end_batch)


def predict_stage(
    stage: Stage,
    previous: Connection | None,
    following: Connection | None,
    announce: BatchAnnouncer,
    batches: Iterable[Batch],
) -> Iterator[Prediction]:
    """Forward batches for evaluation; return what the stage of this process predicts.

    Args:
        stage: The stage.
        previous: Connection to the stage before; None for the first stage.
        following: Connection to the next stage; None for the last stage.
        announce: Gives the batches of all stages.
        batches: Batches of the first stage; not used by the others.
    """
    lookahead = Lookahead()
    for number, batch in enumerate(announce(batches, lookahead, 0, ahead=2)):
        if previous is None:
            values: Evaluated = (*batch, None)
        else:
            values = _receive(previous, number, lookahead)
        prediction = predict_batch(stage.core, *values)
        if following is not None:
            following.send(
                "evaluation",
                number,
                end_batch=lookahead.end_batch,
                values=prediction.output,
                targets=prediction.targets,
                ensemble=prediction.ensemble,
            )
        yield prediction


def _receive(previous: Connection, number: int, lookahead: Lookahead) -> Evaluated:
    """Return values, targets and ensemble as the stage before has sent them."""
    message = previous.receive("evaluation", number)
    lookahead.end_batch = message.number("end_batch")
    names = ("values", "targets", "ensemble")
    values, targets, ensemble = message.trees(names, previous.device)
    return values, targets, ensemble
