"""Remedies for staleness: frozen values of a method, which act at each stage by an object."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.errors import OptionError, format_problems
from hocket.options import Range, out_of_range, wrong_fields


@dataclass(frozen=True)
class Post:
    """Stage at which a remedy acts.

    Attributes:
        stage: Number of the stage, from 0.
        stages: Number of stages.
        staleness: Updates between a forward and its backward, in the mean of the steady state.
    """

    stage: int
    stages: int
    staleness: float


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a stage, and their optimizer.

    Attributes:
        parameters: The weights, in the order in which hooks list tensors for them.
        optimizer: Their optimizer, whose state belongs to the last update.
    """

    parameters: Sequence[nn.Parameter]
    optimizer: Optimizer


class Aid:
    """State of a remedy at one stage; each hook does nothing unless it is overridden.

    Attributes:
        wants_changes: True if ``stepped`` needs to know by how much the weights moved.
        wants_then: True if ``correct`` needs the weights of the forward.
    """

    wants_changes = False
    wants_then = False

    def ahead(self, due: int) -> list[Tensor | None] | None:
        """Return what to add to each weight for a forward; None to leave all as they are.

        Args:
            due: Updates until the backward of the batch, at least 1.
        """
        return None

    def behind(self, staleness: int) -> list[Tensor | None] | None:
        """Return what to add to each weight for a backward; None to leave all as they are.

        Args:
            staleness: Updates since the forward of the batch, at least 1.
        """
        return None

    def correct(self, then: Sequence[Tensor] | None) -> None:
        """Correct ``grad`` of the weights, which is the gradient of one batch.

        Args:
            then: Weights of the forward of the batch; None if they are the present ones.
        """

    def gathered(self, staleness: int) -> None:
        """Take note of the gradients of one batch, which wait for the next update.

        Args:
            staleness: Updates of the stage between the forward of the batch and its backward.
        """

    def rate(self, update: int) -> float:
        """Return the factor on the learning rates of an update.

        Args:
            update: Number of updates that the weights have seen, without the first ones before
                which the pipeline was flushed.
        """
        return 1.0

    def adjust(self, lrs: Sequence[float]) -> None:
        """Change the weights after a step of the optimizer, while ``grad`` is still there.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
        """

    def stepped(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Take note of an update that has just been done.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
            changes: By how much each weight moved; empty if no remedy of the stage asks.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that is remembered, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same remedy at the same stage."""


class Remedy(ABC):
    """Correction of a method for its late gradients.

    A remedy is a frozen dataclass, checked when it is built. It acts at every stage whose
    gradients are late, and at no other.

    Attributes:
        name: Name in messages and on the command line.
        paper: Reference of the paper.
        ranges: Ranges of its options that are numbers.
        moves: Pass for which it puts other weights in place; None if it does not.
        compares: True if it needs the weights of a forward beside the present ones.
        resizes: True if it multiplies elements of a gradient, most by positive factors.
        slows: True if it only divides learning rates by the staleness, where that is above 1.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    ranges: ClassVar[Mapping[str, Range]] = {}
    moves: ClassVar[Literal["forward", "backward"] | None] = None
    compares: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    slows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if problems := wrong_fields(self) + out_of_range(self, self.ranges):
            raise OptionError(
                format_problems(f"remedy {self.name!r} cannot be built", problems)
            )

    @property
    def copies(self) -> int:
        """Copies of a stage's weights that it keeps between two actions."""
        return 0

    @property
    def flushed_updates(self) -> int:
        """First updates before each of which the pipeline is flushed."""
        return 0

    @abstractmethod
    def posted(self, post: Post, weights: Weights) -> Aid:
        """Build the object that acts at one stage.

        Args:
            post: The stage.
            weights: Its weights.
        """


class Aids(Aid):
    """All remedies at one stage, in the order of the method.

    Args:
        aids: The objects of the remedies.
        flushed_updates: First updates before each of which the pipeline is flushed, so that
            there is nothing to correct.
    """

    def __init__(self, aids: Sequence[Aid], flushed_updates: int = 0) -> None:
        self._aids = aids
        self._flushed_updates = flushed_updates
        self.wants_changes = any(aid.wants_changes for aid in aids)
        self.wants_then = any(aid.wants_then for aid in aids)

    def __len__(self) -> int:
        return len(self._aids)

    def ahead(self, due: int) -> list[Tensor | None] | None:
        """Return what the one remedy that moves the weights of forwards adds to each.

        Args:
            due: Updates until the backward of the batch, at least 1.
        """
        return _only(aid.ahead(due) for aid in self._aids)

    def behind(self, staleness: int) -> list[Tensor | None] | None:
        """Return what the one remedy that moves the weights of backwards adds to each.

        Args:
            staleness: Updates since the forward of the batch, at least 1.
        """
        return _only(aid.behind(staleness) for aid in self._aids)

    def correct(self, then: Sequence[Tensor] | None) -> None:
        """Let each remedy correct ``grad`` of the weights.

        Args:
            then: Weights of the forward of the batch; None if they are the present ones.
        """
        for aid in self._aids:
            aid.correct(then)

    def gathered(self, staleness: int) -> None:
        """Let each remedy take note of the gradients of one batch.

        Args:
            staleness: Updates of the stage between the forward of the batch and its backward.
        """
        for aid in self._aids:
            aid.gathered(staleness)

    def rate(self, update: int) -> float:
        """Return the product of all factors on the learning rates of an update.

        Args:
            update: Number of updates that the weights have seen.
        """
        if not self.act_on(update):
            return 1.0
        return prod([aid.rate(update - self._flushed_updates) for aid in self._aids])

    def act_on(self, update: int) -> bool:
        """Return True if the pipeline was not flushed before an update.

        Args:
            update: Number of updates that the weights have seen.
        """
        return update >= self._flushed_updates

    def adjust(self, lrs: Sequence[float]) -> None:
        """Let each remedy change the weights after a step of the optimizer.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
        """
        for aid in self._aids:
            aid.adjust(lrs)

    def stepped(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Let each remedy take note of an update that has just been done.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
            changes: By how much each weight moved; empty if no remedy asks.
        """
        for aid in self._aids:
            aid.stepped(lrs, changes)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all remedies."""
        return {"aids": [aid.state_dict() for aid in self._aids]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same remedies at the same stage."""
        for aid, remembered in zip(self._aids, state["aids"], strict=True):
            aid.load_state_dict(remembered)


def _only(
    answers: Iterable[list[Tensor | None] | None],
) -> list[Tensor | None] | None:
    """Return the answer that is not None, if any."""
    return next((answer for answer in answers if answer is not None), None)


def post_remedies(remedies: Sequence[Remedy], post: Post, weights: Weights) -> Aids:
    """Build the objects that act at a stage; none where no gradient is late.

    Args:
        remedies: Remedies of the method.
        post: The stage.
        weights: Its weights.
    """
    if not post.staleness:
        return Aids([])
    posted = [remedy.posted(post, weights) for remedy in remedies]
    return Aids(posted, count_flushed_updates(remedies))


def count_flushed_updates(remedies: Iterable[Remedy]) -> int:
    """Return the number of first updates before each of which the pipeline is flushed.

    Args:
        remedies: Remedies of a method.
    """
    return max((remedy.flushed_updates for remedy in remedies), default=0)
