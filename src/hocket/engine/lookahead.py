"""The number of batches to come, announced by the first stage, which alone reads the data."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from hocket.engine.engine import Batch
from hocket.stage.passes.forward_only import Prediction, predict_batch
from hocket.stage.stage import Stage
from hocket.transport.processes.connection import Connection
from hocket.transport.processes.connection_ports import Lookahead
from hocket.tree import copy_tensors

NO_BATCH: Batch = (None, None)
"""Placeholder for a batch in processes that do not read the data."""


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

    def predict(self, stage: Stage, batches: Iterable[Batch]) -> Iterator[Prediction]:
        """Forward batches for evaluation; return what the stage of this process predicts."""
        lookahead, previous = Lookahead(), self._previous
        for number, batch in enumerate(self(batches, lookahead, 0, ahead=2)):
            # Receive what the stage before has made of the batch.
            values, targets, ensemble = *batch, None
            if previous is not None:
                message = previous.receive("evaluation", number)
                lookahead.end_batch = message.number("end_batch")
                names = ("values", "targets", "ensemble")
                values, targets, ensemble = message.trees(names, previous.device)

            # Predict, and send on what the next stage needs.
            prediction = predict_batch(stage.core, values, targets, ensemble)
            if self._following is not None:
                self._following.send(
                    "evaluation",
                    number,
                    end_batch=lookahead.end_batch,
                    values=prediction.output,
                    targets=prediction.targets,
                    ensemble=prediction.ensemble,
                )
            yield prediction
