"""Actions of stages on batches, and the packets that they wait for."""

import re
from dataclasses import dataclass, field
from typing import Literal, cast

from hocket.errors import ProgramError
from hocket.methods.method import Method

Kind = Literal["F", "B", "U", "T"]


@dataclass(frozen=True)
class Action:
    """Action of one stage on one batch.

    Attributes:
        kind: Forward, backward, update or learning from a target.
        stage: Number of the stage.
        batch: Number of the batch.
        version: Number of updates that the weights of a forward have seen; None for the newest
            weights. It is no part of the identity of an action.
        due: Number of updates of the stage from the weights of a forward to the backward of
            its batch, if no batch is skipped. It is no part of the identity either.

    >>> str(Action("F", 2, 5)), str(Action("F", 2, 5, 3)), Action.parse("B0.7").batch
    ('F2.5', 'F2.5@3', 7)
    """

    kind: Kind
    stage: int
    batch: int
    version: int | None = field(default=None, compare=False)
    due: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.label}"

    @property
    def label(self) -> str:
        """The batch, and the version of the weights if it is not the newest."""
        return f"{self.batch}" if self.version is None else f"{self.batch}@{self.version}"

    @staticmethod
    def parse(text: str) -> "Action":
        """Return the action that is printed as ``text``.

        Raises:
            ProgramError: The text is not an action.
        """
        match = re.fullmatch(r"([FBUT])(\d+)\.(\d+)(?:@(\d+))?", text)
        if match is None:
            raise ProgramError(
                f"cannot read the action {text!r}; write a kind, a stage and a batch: F2.5"
            )
        version = None if match[4] is None else int(match[4])
        return Action(cast(Kind, match[1]), int(match[2]), int(match[3]), version)


Tick = tuple[Action, ...]


def dependency(action: Action, method: Method, stages: int) -> Action | None:
    """Return the action of a neighbour whose packet an action receives; None without one.

    Args:
        action: Action that may need a packet.
        method: Method of the program.
        stages: Number of stages (K).

    >>> from hocket.methods import FDG
    >>> [str(dependency(Action(kind, 1, 5), FDG(), stages=3)) for kind in "FBU"]
    ['F0.5', 'B2.5', 'None']
    """
    if action.kind == "F" and action.stage > 0:
        return Action("F", action.stage - 1, action.batch)
    needs_answer = action.kind == "T" or (action.kind == "B" and method.signal.needs_gradient)
    if needs_answer and action.stage < stages - 1:
        return Action("B", action.stage + 1, action.batch)
    return None
