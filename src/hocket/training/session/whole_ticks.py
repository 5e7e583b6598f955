"""Ticks that an error has cut short, after which the stages are at different places."""

from collections.abc import Sequence

from hocket.errors import CheckpointError, HocketError, NonFiniteError
from hocket.methods.method import Method
from hocket.stage import Stage


class WholeTicks:
    """Takes note of the first tick that an error cuts short.

    Args:
        method: The method. If its batches are in flight between two ticks, or wait for an
            update of several, an error loses them.
        stages: Number of stages.
    """

    def __init__(self, method: Method, stages: int) -> None:
        self._holds_batches = method.accumulate > 1 or method.flight(stages) > 0
        self._cut_short = ""
        self._advice = "resume a new trainer from a checkpoint"

    def end(self, error: BaseException, stages: Sequence[Stage]) -> None:
        """Take note of an error that has ended a tick; only the first one counts.

        Args:
            error: The error.
            stages: Stages of this process. They let the batch of the tick go, if none is lost
                with it.
        """
        if not self._holds_batches:
            for stage in stages:
                stage.in_flight.clear()
        if self._cut_short:
            return
        self._cut_short = f"a tick was cut short by {type(error).__name__}"
        if isinstance(error, NonFiniteError):
            self._advice += ", or leave such batches out with on_nan='skip'"

    def require_batches(self) -> None:
        """Refuse to go on without the batches whose update was to come.

        Raises:
            HocketError: They were lost in a tick that was cut short.
        """
        if self._cut_short and self._holds_batches:
            raise HocketError(
                f"{self._cut_short}, and the batches before their update are lost; "
                f"{self._advice}"
            )

    def require(self) -> None:
        """Refuse the state after a tick that was cut short.

        Raises:
            CheckpointError: There was such a tick.
        """
        if self._cut_short:
            raise CheckpointError(
                f"{self._cut_short}, so the stages are at different places; resume from the "
                "checkpoint before"
            )
