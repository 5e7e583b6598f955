"""How all stages go through the same batches, though only the first one reads them."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from torch import Tensor

from hocket.engine.engine import Batch
from hocket.stage.prediction import Prediction
from hocket.stage.stage import Stage
from hocket.transport.connection import Connection, Lookahead
from hocket.tree import Tree

NOTHING: Batch = (None, None)
"""Stands for a batch in processes that do not read the data."""

Evaluated: TypeAlias = tuple[Tree, Tree, Tensor | None]
"""What crosses an edge in an evaluation: values, targets, and the votes of exits so far."""


class BatchAnnouncer:
    """Gives batches at the first stage, which reads ahead; as many placeholders at the others.

    Every stage goes on until what the horizon says, and hears of a new one in time.

    Args:
        before: The connection to the stage before, if there is one.
        after: The connection to the stage after, if there is one.
    """

    def __init__(self, before: Connection | None, after: Connection | None) -> None:
        self._before = before
        self._after = after
        self._openings = 0

    def __call__(
        self, batches: Iterable[Batch], horizon: Lookahead, start: int, ahead: int
    ) -> Iterator[Batch]:
        """Go through batches from a tick on, the first stage reading so many ahead."""
        number, self._openings = self._openings, self._openings + 1
        if self._before is not None:
            horizon.until = self._before.take("opening", number).header["until"]
            self._open(number, horizon)
            while start < horizon.until:
                yield NOTHING
                start += 1
            return
        rest = iter(batches)
        queue = deque(islice(rest, ahead))
        horizon.until = start + len(queue)
        self._open(number, horizon)
        while queue:
            yield queue.popleft()
            start += 1
            queue.extend(islice(rest, 1))
            horizon.until = start + len(queue)

    def _open(self, number: int, horizon: Lookahead) -> None:
        if self._after is not None:
            self._after.send("opening", number, {"until": horizon.until})


def predict_stage(
    stage: Stage,
    before: Connection | None,
    after: Connection | None,
    announce: BatchAnnouncer,
    batches: Iterable[Batch],
) -> Iterator[Prediction]:
    """What the stage of this process makes of each batch of an evaluation; nothing is kept."""
    horizon = Lookahead()
    for number, given in enumerate(announce(batches, horizon, 0, ahead=2)):
        taken = (*given, None) if before is None else _passed_on(before, number, horizon)
        answer = stage.predict(*taken)
        if after is not None:
            after.send(
                "evaluation",
                number,
                {"until": horizon.until},
                values=answer.output,
                targets=answer.targets,
                votes=answer.votes,
            )
        yield answer


def _passed_on(before: Connection, number: int, horizon: Lookahead) -> Evaluated:
    """Values, targets and votes as the stage before has sent them."""
    parcel = before.take("evaluation", number)
    horizon.until = parcel.header["until"]
    values, targets, votes = (
        parcel.tree(name, before.device) for name in ("values", "targets", "votes")
    )
    return values, targets, votes
