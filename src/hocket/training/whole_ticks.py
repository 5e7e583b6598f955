"""Ticks that an error has cut short, after which the stages are at different places."""

from hocket.engine.engine import Engine
from hocket.errors import CheckpointError, HocketError, NonFiniteError


class WholeTicks:
    """Takes note of the first tick that an error cuts short."""

    def __init__(self) -> None:
        self._cut_short = ""
        self._finite = True

    def end(self, error: BaseException, engine: Engine) -> None:
        """Take note of an error that has ended a tick; a later one is told of the first.

        Args:
            error: The error.
            engine: The engine, which may have batches in flight that are lost.
        """
        if self._cut_short:
            error.add_note(f"({self._cut_short}; resume a new trainer)")
        else:
            lost = any(len(stage.in_flight) for stage in engine.stages)
            self._finite = not (lost and isinstance(error, NonFiniteError))
            self._cut_short = (
                f"tick {engine.tick_count} was cut short by {type(error).__name__}"
            )

    def require_finite(self) -> None:
        """Refuse to go on after NaN or infinity, with which batches in flight were lost.

        Raises:
            HocketError: A tick was cut short by them.
        """
        if not self._finite:
            raise HocketError(
                f"{self._cut_short}, and the batches in flight are lost; resume a new trainer "
                "from a checkpoint, or leave such batches out with on_nan='skip'"
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
