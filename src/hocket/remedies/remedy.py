"""Remedies for staleness: frozen values of a method, attached to each stage by an object."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range


@dataclass(frozen=True)
class StageInfo:
    """Stage at which a remedy acts.

    Attributes:
        index: Number of the stage, from 0.
        count: Number of stages.
        staleness: Updates between a forward and its backward, in the mean of the steady state.
    """

    index: int
    count: int
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


class StageRemedy:
    """A remedy at one stage; each hook does nothing unless it is overridden.

    The stage calls ``shift_for_forward`` before a forward, ``shift_for_backward`` before a
    backward, and ``correct_gradient``, ``takes`` and ``after_backward`` after it. Around each
    update it calls ``lr_factor``, the optimizer, ``after_step`` and ``observe_update``, in this
    order.

    Attributes:
        needs_changes: True if ``observe_update`` needs to know how far the weights moved.
    """

    needs_changes = False

    def shift_for_forward(self, due: int) -> list[Tensor | None] | None:
        """Return what to add to each weight for a forward; None to leave all as they are.

        Args:
            due: Updates until the backward of the batch, at least 1.
        """
        return None

    def shift_for_backward(self, staleness: int) -> list[Tensor | None] | None:
        """Return what to add to each weight for a backward; None to leave all as they are.

        Args:
            staleness: Updates since the forward of the batch, at least 1.
        """
        return None

    def correct_gradient(self, forward_weights: Sequence[Tensor] | None) -> None:
        """Correct ``grad`` of the weights, which is the gradient of one batch.

        Args:
            forward_weights: Weights of the forward of the batch, if the remedy ``compares``
                them; None if they have not changed.
        """

    def takes(self, staleness: int) -> bool:
        """Return False for a batch whose gradient the next update leaves out.

        Args:
            staleness: Updates of the stage between the forward of the batch and its backward.
        """
        return True

    def after_backward(self, staleness: int) -> None:
        """Count a batch whose gradient waits for the next update.

        Args:
            staleness: Updates of the stage between the forward of the batch and its backward.
        """

    def lr_factor(self, update: int) -> float:
        """Return the factor on the learning rates of an update.

        Args:
            update: Number of updates that the weights have seen, without the first ones before
                which the pipeline was flushed.
        """
        return 1.0

    def after_step(self, lrs: Sequence[float]) -> None:
        """Change the weights after a step of the optimizer, while ``grad`` is still there.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
        """

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Remember an update that has just been done.

        Args:
            lrs: Learning rates that it used, one for each group of the optimizer.
            changes: How far each weight moved; empty if no remedy of the stage needs it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that is remembered, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same remedy at the same stage."""


class Remedy(ABC):
    """Correction of a method for its stale gradients.

    A remedy is a frozen dataclass, checked when it is built. It acts at every stage whose
    gradients are stale, and at no other.

    Attributes:
        name: Name in messages and on the command line.
        paper: Reference of the paper.
        ranges: Ranges of its options that are numbers.
        moves: Pass for which it puts other weights in place; None if it does not.
        compares: True if it compares the weights of a forward with the present ones.
        corrects: True if it corrects gradients or momenta as stale ones.
        resizes: True if it mostly changes the size of a gradient's elements, and takes
            optimizers that divide it out.
        slows: True if it only divides learning rates by the staleness, where that is above 1.

    >>> from hocket.methods import FDG, parse_method
    >>> from hocket.remedies import T1, Predict
    >>> method = FDG().with_remedies(Predict(), T1(anneal=500))
    >>> method == parse_method("fdg+predict+t1(anneal=500)")
    True
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    ranges: ClassVar[Mapping[str, Range]] = {}
    moves: ClassVar[Literal["forward", "backward"] | None] = None
    compares: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    slows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, self.ranges)
        raise_problems(OptionError, f"remedy {self.name!r} cannot be built", problems)

    @property
    def copies(self) -> int:
        """Copies of a stage's weights that it keeps between two actions."""
        return 0

    @property
    def flushed_updates(self) -> int:
        """First updates before each of which the pipeline is flushed."""
        return 0

    @abstractmethod
    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """Return the object that acts at one stage."""


class StageRemedies:
    """All remedies at one stage, in the order of the method.

    Args:
        each: The remedies at the stage.
        remedies: The remedies of the method that they are of.

    Attributes:
        compares: True if one compares the weights of a forward with the present ones.
        needs_changes: True if ``observe_update`` of one needs to know how far weights moved.
        may_draw: True if one may draw random numbers; none of Hocket's does.
    """

    def __init__(
        self, each: Sequence[StageRemedy] = (), remedies: Sequence[Remedy] = ()
    ) -> None:
        self.each = each
        self._flushed_updates = count_flushed_updates(remedies)
        self.compares = any(remedy.compares for remedy in remedies)
        self.needs_changes = any(remedy.needs_changes for remedy in each)
        kinds = [type(own) for own in (*remedies, *each)]
        self.may_draw = not all(kind.__module__.startswith("hocket.") for kind in kinds)

    def shift_for_forward(self, due: int) -> list[Tensor | None] | None:
        """Return the shift of the one remedy that moves the weights of forwards."""
        shifts = (remedy.shift_for_forward(due) for remedy in self.each)
        return next((shift for shift in shifts if shift is not None), None)

    def shift_for_backward(self, staleness: int) -> list[Tensor | None] | None:
        """Return the shift of the one remedy that moves the weights of backwards."""
        shifts = (remedy.shift_for_backward(staleness) for remedy in self.each)
        return next((shift for shift in shifts if shift is not None), None)

    def acting_on(self, update: int) -> Sequence[StageRemedy]:
        """Return the remedies that act on an update: none if the pipeline was flushed first."""
        return self.each if update >= self._flushed_updates else ()

    def takes(self, staleness: int) -> bool:
        """Return True if no remedy leaves out the gradient of a batch."""
        return all(remedy.takes(staleness) for remedy in self.each)

    def lr_factor(self, update: int) -> float:
        """Return the product of all factors on the learning rates of an update."""
        acting = self.acting_on(update)
        return prod([remedy.lr_factor(update - self._flushed_updates) for remedy in acting])

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all remedies."""
        return {"aids": [remedy.state_dict() for remedy in self.each]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same remedies at the same stage."""
        for remedy, remembered in zip(self.each, state["aids"], strict=True):
            remedy.load_state_dict(remembered)


def attach_remedies(
    remedies: Sequence[Remedy], stage: StageInfo, weights: Weights
) -> StageRemedies:
    """Attach the remedies of a method to one stage.

    Args:
        remedies: The remedies.
        stage: The stage.
        weights: Its weights.

    Raises:
        OptionError: A remedy moves weights for a pass that its class does not name.
    """
    each = [remedy.attach(stage, weights) for remedy in remedies]
    for remedy, at_stage in zip(remedies, each, strict=True):
        for moved in ("forward", "backward"):
            hook = f"shift_for_{moved}"
            own = getattr(type(at_stage), hook) is not getattr(StageRemedy, hook)
            if own and remedy.moves != moved:
                raise OptionError(
                    f"{_names([remedy])} has {hook}, and moves is {remedy.moves!r}; give its "
                    f"class moves={moved!r}, or drop the hook"
                )
    return StageRemedies(each, remedies)


def dense_gradient(weight: nn.Parameter, stage: int) -> Tensor:
    """Return the gradient of a weight, of its shape.

    Raises:
        OptionError: It is sparse or complex.
    """
    gradient = weight.grad
    assert gradient is not None
    if gradient.layout != torch.strided or gradient.is_complex():
        kind = "complex" if gradient.is_complex() else "sparse"
        raise OptionError(
            f"stage {stage}: a weight of shape {tuple(weight.shape)} has a {kind} gradient, "
            "and a remedy of the method changes real gradients element by element; leave the "
            "remedy out, or use other layers"
        )
    return gradient


def count_flushed_updates(remedies: Iterable[Remedy]) -> int:
    """Return the number of first updates before each of which the pipeline is flushed."""
    return max((remedy.flushed_updates for remedy in remedies), default=0)


def remedy_problems(
    remedies: Sequence[Remedy], *, stale: bool, own_losses: bool, hold: str, linearize: str
) -> list[str]:
    """Return each reason why a method cannot have these remedies, as text.

    Args:
        remedies: Remedies of the method.
        stale: True if gradients of the method are stale.
        own_losses: True if stages have heads, whose gradients are not.
        hold: Version of the weights that its forwards have.
        linearize: Weights that its backwards have.
    """
    # What is no remedy has no attributes to look at.
    strangers = [remedy for remedy in remedies if not isinstance(remedy, Remedy)]
    if strangers:
        return [
            f"remedies has {stranger!r}, which is no remedy; give one such as "
            "hocket.remedies.T1()"
            for stranger in strangers
        ]

    # Remedies without a stale gradient, and those that are there twice.
    problems = []
    if remedies and not stale:
        problems.append(
            f"there is no stale gradient that {_names(remedies)} could correct; leave remedies "
            "out, or use a method whose gradients have a delay"
        )
    kinds = [type(remedy) for remedy in remedies]
    twice = [remedy for remedy in remedies if kinds.count(type(remedy)) > 1]
    if twice:
        problems.append(f"{_names(twice[:1])} is given more than once; keep one of them")

    # Remedies that would act on heads, those that move weights, and those that compare them.
    acting = [remedy for remedy in remedies if remedy.corrects]
    if own_losses and acting:
        problems.append(
            f"{_names(acting)} would also correct the gradients of heads, which are not stale; "
            "leave it out, or set reach=0"
        )
    movers = [remedy for remedy in remedies if remedy.moves]
    if len(movers) > 1:
        problems.append(
            f"{_names(movers)} each move the weights of the same batch; keep one of them"
        )
    backwards = [remedy for remedy in movers if remedy.moves == "backward"]
    if backwards and linearize == "stash":
        problems.append(
            f"{_names(backwards)} moves the weights of a backward, which linearize='stash' "
            "takes from the forward; use linearize='live' or 'recompute', or leave it out"
        )
    elif movers and hold != "newest":
        problems.append(
            f"{_names(movers)} moves the newest weights, and with hold={hold!r} a stage "
            "forwards with older ones on purpose; leave hold at 'newest', or the remedy out"
        )
    comparing = [remedy for remedy in remedies if remedy.compares]
    if comparing and movers:
        problems.append(
            f"{_names(comparing)} compares the weights of a forward with the present ones, and "
            f"{_names(movers)} moves them; keep one of the two"
        )
    if comparing and hold != "newest":
        problems.append(
            f"{_names(comparing)} compares the newest weights of a forward with the present "
            f"ones, and with hold={hold!r} a forward has older ones; leave hold at 'newest', "
            "or the remedy out"
        )
    return problems


def _names(remedies: Sequence[Remedy]) -> str:
    return ", ".join(type(remedy).__name__ for remedy in remedies)
