"""Remedies for staleness: frozen values of a method, which act at each stage by an object."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar


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


class Aid:
    """State of a remedy at one stage; each hook does nothing unless it is overridden."""

    def gathered(self, staleness: int) -> None:
        """Take note of the gradients of one batch, which wait for the next update.

        Args:
            staleness: Updates of the stage between the forward of the batch and its backward.
        """

    def rate(self, update: int) -> float:
        """Return the factor on the learning rates of an update.

        Args:
            update: Number of updates that the weights have seen.
        """
        return 1.0

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
        paper: Reference of the paper.
    """

    paper: ClassVar[str]

    @abstractmethod
    def posted(self, post: Post) -> Aid:
        """Build the object that acts at one stage."""


class Aids(Aid):
    """All remedies at one stage, in the order of the method."""

    def __init__(self, aids: Sequence[Aid]) -> None:
        self._aids = aids

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
        return prod(aid.rate(update) for aid in self._aids)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all remedies."""
        return {"aids": [aid.state_dict() for aid in self._aids]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same remedies at the same stage."""
        for aid, remembered in zip(self._aids, state["aids"], strict=True):
            aid.load_state_dict(remembered)


def post_remedies(remedies: Sequence[Remedy], post: Post) -> Aids:
    """Build the objects that act at a stage; none where no gradient is late.

    Args:
        remedies: Remedies of the method.
        post: The stage.
    """
    return Aids([remedy.posted(post) for remedy in remedies] if post.staleness else [])
