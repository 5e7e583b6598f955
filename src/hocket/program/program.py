"""Program of all stages: their schedules, merged into ticks."""

from collections.abc import Iterable, Iterator

from hocket.errors import OptionError
from hocket.methods.method import Method
from hocket.program.action import Action, Kind, Tick, dependency
from hocket.program.schedule import StageSchedule


class Program:
    """Program of a method on K stages, computed tick by tick while batches arrive.

    Args:
        method: Method of the training.
        stages: Number of stages (K).
        only: Stage whose actions are the program; None for all stages.

    Raises:
        OptionError: There is less than one stage.
    """

    def __init__(self, method: Method, stages: int, only: int | None = None) -> None:
        if stages < 1:
            raise OptionError(f"a program has {stages} stages; use at least 1")
        self.method = method
        self.stages = stages
        present = range(stages) if only is None else [only]
        self.schedules = [StageSchedule(method, stages, stage) for stage in present]
        self._orders: dict[tuple[tuple[Kind, int, int], ...], list[int]] = {}

    @property
    def tick_count(self) -> int:
        """Number of the next tick."""
        return self.schedules[0].tick_count

    @property
    def batch_count(self) -> int:
        """Number of batches that have entered."""
        return self.schedules[0].batch_count

    def tick(self) -> Tick:
        """Return the next tick, in which a new batch enters."""
        return self._merge([schedule.tick() for schedule in self.schedules])

    def drain_tick(self) -> Tick:
        """Return the next tick, in which no batch enters."""
        return self._merge([schedule.drain_tick() for schedule in self.schedules])

    def final_update(self) -> Tick:
        """Return the updates with the remaining gradients, once no batch is in flight."""
        return tuple(a for schedule in self.schedules for a in schedule.final_update())

    def _merge(self, columns: list[list[Action]]) -> Tick:
        """Merge the columns so that each action comes after those that it needs in this tick.

        An edge without delay makes a stage wait inside the tick: that is its lock. The order
        depends on the differences between batches, which soon repeat.
        """
        if len(columns) == 1:
            return tuple(columns[0])
        actions = [action for column in columns for action in column]
        newest = self.schedules[0].batch_count
        pattern = tuple([(a.kind, a.stage, a.batch - newest) for a in actions])
        if pattern not in self._orders:
            self._orders[pattern] = list(map(actions.index, self._ordered(columns)))
        return tuple([actions[place] for place in self._orders[pattern]])

    def _ordered(self, columns: list[list[Action]]) -> list[Action]:
        """Return the actions of all columns, which are emptied, in an order that works."""
        merged: list[Action] = []
        in_tick = {action for column in columns for action in column}

        def ready(action: Action) -> bool:
            need = dependency(action, self.method, self.stages)
            return need not in in_tick or need in merged

        while any(columns):
            for column in columns:
                while column and ready(column[0]):
                    merged.append(column.pop(0))
        return merged


def unroll(method: Method, stages: int, batches: int | Iterable[int]) -> Iterator[Tick]:
    """Yield all ticks of a training, drained at its end.

    Args:
        method: Method of the training.
        stages: Number of stages (K).
        batches: Number of batches of the training, or of each of its epochs.

    >>> from hocket.methods import FDG
    >>> for tick in unroll(FDG(), stages=2, batches=3):
    ...     print(*tick)
    F0.0
    F0.1 F1.0 B1.0 U1.0
    B0.0 U0.0 F0.2 F1.1 B1.1 U1.1
    B0.1 U0.1 F1.2 B1.2 U1.2
    B0.2 U0.2
    """
    program = Program(method, stages)
    for count in [batches] if isinstance(batches, int) else batches:
        for _ in range(count):
            yield from enter(program)
        if method.epoch_end == "drain":
            yield from drain(program)
    yield from drain(program)


def enter(program: Program) -> Iterator[Tick]:
    """Yield the tick in which the next batch enters.

    Where it completes a group that is flushed, the ticks follow in which the group leaves.

    >>> from hocket.methods import OneFOneB
    >>> program = Program(OneFOneB(accumulate=2), stages=2)
    >>> for batch in range(2):
    ...     print(*(" ".join(map(str, tick)) for tick in enter(program)), sep=" | ")
    F0.0 F1.0 B1.0
    F0.1 B0.0 F1.1 B1.1 U1.1 | B0.1 U0.1
    """
    yield program.tick()
    while program.schedules[0].flushing:
        yield program.drain_tick()


def drain(program: Program) -> Iterator[Tick]:
    """Yield the ticks that complete all batches in flight and apply all gradients.

    Remaining gradients, too few for an ordinary update, are applied when no batch is in flight
    any more, so that no stage needs to know in advance which batch is the last.
    """
    while not program.schedules[0].idle:
        yield program.drain_tick()
    if updates := program.final_update():
        yield updates
