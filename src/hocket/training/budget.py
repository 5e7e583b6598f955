"""The end of a training: after a number of epochs, or of updates."""

from dataclasses import dataclass
from math import ceil

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range

COUNTS_OWN_UPDATES = (
    "counts its own updates; give epochs, and leave updates and evaluate_every out"
)
"""Reason against counts of updates of stages that run freely, and advice."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a training, and the points on its way at which it is evaluated.

    With a budget of N updates, as many batches enter as N updates of a stage take: N times the
    batches that the method accumulates, less what is missing where a method that drains ends an
    epoch. Then all batches in flight are completed, so that every stage has made N updates.

    Attributes:
        epochs: Number of epochs; None for a number of updates.
        updates: Number of updates of each stage; None for a number of epochs.
        evaluate_every: Updates between evaluations within epochs; 0 for none.

    Raises:
        OptionError: There is no length, or there are two, or one of the numbers is too small.
    """

    epochs: int | None = None
    updates: int | None = None
    evaluate_every: int = 0

    def __post_init__(self) -> None:
        least = {"epochs": 1, "updates": 1, "evaluate_every": 0}
        ranges = {name: Range(least=number) for name, number in least.items()}
        problems = wrong_fields(self) + out_of_range(self, ranges)
        if (self.epochs is None) == (self.updates is None):
            problems.append(
                f"epochs is {self.epochs} and updates is {self.updates}; a training ends after "
                "one of the two, so give one"
            )
        raise_problems(OptionError, "this length is impossible", problems)

    def is_spent(self, epochs: int, updates: int) -> bool:
        """Return True after these numbers of epochs and updates.

        >>> Budget(updates=5).is_spent(epochs=9, updates=4)
        False
        """
        if self.updates is not None:
            return updates >= self.updates
        return self.epochs is not None and epochs >= self.epochs

    def require_ahead(self, epochs: int, updates: int, *, begun: bool) -> None:
        """Refuse an end that a resumed training has passed already.

        Args:
            epochs: Number of epochs done.
            updates: Number of updates done.
            begun: True if batches of a further epoch have entered, which it will complete.

        Raises:
            OptionError: It has done more than it is to have.
        """
        unit, done, wanted = "epochs", epochs, self.epochs
        if self.updates is not None:
            unit, done, wanted, begun = "updates", updates, self.updates, False
        if wanted is not None and done + begun > wanted:
            progress = f"done {done} {unit}" + begun * " and begun another one"
            raise OptionError(
                f"the training has {progress}, and is to have {wanted}; give {unit} "
                f"(--{unit} on the command line) of {done + 1} or more, or begin a new one"
            )

    def evaluates_at(self, updates: int) -> bool:
        """Return True if an evaluation is due; the one at the end comes in any case."""
        due = self.evaluate_every > 0 and updates > 0 and updates % self.evaluate_every == 0
        return due and updates != self.updates

    def updates_to_next_stop(self, updates: int) -> int | None:
        """Return the updates until an evaluation or the end; None if there is no such number.

        >>> Budget(updates=5, evaluate_every=4).updates_to_next_stop(1)
        3
        >>> Budget(updates=5, evaluate_every=4).updates_to_next_stop(4)
        1
        """
        stops = [] if self.updates is None else [self.updates - updates]
        if self.evaluate_every:
            stops.append(self.evaluate_every - updates % self.evaluate_every)
        return min(stops, default=None)

    def passes(self, length: int | None, accumulate: int) -> int:
        """Return the passes over the data that this takes, at most one too few.

        Args:
            length: Batches in an epoch; None if unknown.
            accumulate: Batches in an update.
        """
        if self.updates is None:
            return self.epochs or 1
        return ceil(self.updates * accumulate / length) if length else 1

    def batches(self, passes: int, length: int | None, accumulate: int) -> int | None:
        """Return the batches that are going to enter; None if unknown.

        Args:
            passes: Passes over the data.
            length: Batches in an epoch; None if unknown.
            accumulate: Batches in an update.
        """
        if self.updates is not None:
            return self.updates * accumulate
        return None if length is None else passes * length
