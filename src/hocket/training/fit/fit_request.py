"""Arguments of one ``fit``, checked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hocket.checkpoint import Checkpoints
from hocket.errors import OptionError
from hocket.options.require import require_functions
from hocket.training.budget import Budget
from hocket.training.callback import Callback
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.session.agreement import require_alike
from hocket.training.session.batches import require_batches
from hocket.training.session.session import Session


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Arguments of one ``fit``, checked.

    Attributes:
        train: The training data.
        validation: Data to evaluate on after each epoch; None for no evaluation.
        budget: Length of the training, and where within epochs it is evaluated.
        length: Batches in an epoch; None if unknown.
        resumed: True if the training began before a restart, and continues its epochs.
        on_epoch: Called with the result of each epoch, before the callbacks; None to call
            nothing.
        on_evaluation: Called with the number of updates and the result of each evaluation
            within an epoch; None to call nothing.
        callbacks: Called after steps, epochs and checkpoints.
        progress: True to show the progress, in the process that prints.
        checkpoints: Folder and interval of checkpoints; None for none.

    Raises:
        DataError: The data cannot be iterated.
        OptionError: Another argument is of another kind.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None
    budget: Budget
    length: int | None
    resumed: bool
    on_epoch: Callable[[EpochResult], None] | None
    on_evaluation: Callable[[int, EvaluationResult], None] | None
    callbacks: Sequence[Callback]
    progress: bool
    checkpoints: Checkpoints | None

    def __post_init__(self) -> None:
        require_batches("training data", self.train)
        if self.validation is not None:
            require_batches("validation data", self.validation)
        require_functions(on_epoch=self.on_epoch, on_evaluation=self.on_evaluation)
        if self.checkpoints is not None and not isinstance(self.checkpoints, Checkpoints):
            raise OptionError(
                f"checkpoints is {self.checkpoints!r}; give hocket.Checkpoints(folder)"
            )

    def require_same(self, session: Session) -> None:
        """Refuse arguments that differ from what other processes were given.

        Raises:
            WorldError: They differ, so that processes would wait for each other.
        """
        if session.world.size == 1:
            return
        given = {
            **asdict(self.budget),
            "validation": "not there" if self.validation is None else "given",
            "the interval of checkpoints": self.checkpoints and self.checkpoints.every,
            "the number of batches": self.length if session.detached else "that of stage 0",
        }
        require_alike(session.world.gather(given, "calling fit"))
