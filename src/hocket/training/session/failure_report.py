"""Report of the errors of this process to the other processes."""

from types import TracebackType

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World


class FailureReport:
    """Context manager that reports any error to the other processes; every step enters it.

    It keeps nothing, so that it may be entered again within itself.

    Args:
        world: This process among the others, or alone.
    """

    __slots__ = ("_world",)

    def __init__(self, world: World | SoloWorld) -> None:
        self._world = world

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | SystemExit):
            self._world.report_failure(error)
