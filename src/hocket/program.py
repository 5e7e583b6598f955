"""What happens when: a method on K stages as ticks of actions, without tensors.

``F2.5`` says that stage 2 forwards batch 5, ``B`` that it back-propagates it, ``U`` that it
updates its weights with the gradients gathered up to that batch, ``T`` that its signal learns
from the target that came back for it. Stages and batches are counted from 0.

Batch b enters at tick s. Stage k forwards it at ``s + k*df`` and back-propagates it
``(K-1-k)(df + db)`` ticks later, where df and db are the delays of an edge.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar, cast

from hocket.errors import OptionError, ProgramError, listed
from hocket.methods.method import Method

Kind = Literal["F", "B", "U", "T"]


@dataclass(frozen=True)
class Action:
    """One thing that one stage does to one batch.

    >>> str(Action("F", 2, 5)), Action.parse("B0.7").batch
    ('F2.5', 7)
    """

    kind: Kind
    stage: int
    batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.batch}"

    @staticmethod
    def parse(text: str) -> "Action":
        """The action that prints as ``text``.

        Raises:
            ProgramError: The text is not an action.
        """
        found = re.fullmatch(r"([FBUT])(\d+)\.(\d+)", text)
        if found is None:
            raise ProgramError(
                f"cannot read the action {text!r}; write a kind, a stage and a batch: F2.5"
            )
        return Action(cast(Kind, found[1]), int(found[2]), int(found[3]))


Tick = tuple[Action, ...]


def dependency(action: Action, method: Method, stages: int) -> Action | None:
    """The action of a neighbour whose packet this action takes, if it takes one.

    >>> from hocket.methods import FDG
    >>> [str(source(Action(kind, 1, 5), FDG(), stages=3)) for kind in "FBU"]
    ['F0.5', 'B2.5', 'None']
    """
    if action.kind == "F" and action.stage > 0:
        return Action("F", action.stage - 1, action.batch)
    waits = action.kind == "T" or (action.kind == "B" and method.signal.needs_gradient)
    if waits and action.stage < stages - 1:
        return Action("B", action.stage + 1, action.batch)
    return None


class StageSchedule:
    """What one stage does, tick by tick, computed while batches arrive."""

    def __init__(self, method: Method, stages: int, stage: int) -> None:
        self.method = method
        self.stages = stages
        self.stage = stage
        self.tick_count = 0
        self.batch_count = 0
        self._entered: dict[int, int] = {}  # tick -> batch, of the batches in flight
        self._gathered = 0  # gradients since the last update
        # Ticks from a batch's first action to its last. A gradient comes back over every edge,
        # a target over one; the last edge is the last to return it.
        crossed = (
            stages - 1
            if method.signal.needs_gradient
            else min(stages - 1, method.signal.learns_from_gradient)
        )
        self._flight = (stages - 1) * method.forward_delay + crossed * method.backward_delay

    def state_dict(self) -> dict[str, Any]:
        """Where it has come to, as plain values."""
        return {
            "tick_count": self.tick_count,
            "batch_count": self.batch_count,
            "entered": dict(self._entered),
            "gathered": self._gathered,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another one had come to."""
        self.tick_count, self.batch_count = state["tick_count"], state["batch_count"]
        self._entered = dict(state["entered"])
        self._gathered = state["gathered"]

    def start_at(self, now: int, fed: int) -> None:
        """Count ticks and batches on from these, with nothing in flight."""
        self.load_state_dict(
            {"tick_count": now, "batch_count": fed, "entered": {}, "gathered": 0}
        )

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight at any stage."""
        return not self._entered

    def tick(self) -> list[Action]:
        """The stage's actions in the next tick, at which a new batch enters."""
        self._entered[self.tick_count] = self.batch_count
        self.batch_count += 1
        return self.drain_tick()

    def drain_tick(self) -> list[Action]:
        """The stage's actions in the next tick, at which none enters."""
        method, stage = self.method, self.stage
        df, db = method.forward_delay, method.backward_delay
        delay = method.delay(stage, self.stages)
        arrived = self.tick_count - stage * df
        forward, backward, learn = [], [], []
        if arrived in self._entered:
            forward.append(Action("F", stage, self._entered[arrived]))
        if (due := arrived - delay) in self._entered:
            backward.append(Action("B", stage, batch := self._entered[due]))
            self._gathered += 1
            if self._gathered == method.accumulate:
                backward.append(Action("U", stage, batch))
                self._gathered = 0
        target = arrived - df - db
        if (
            method.signal.learns_from_gradient
            and stage < self.stages - 1
            and target in self._entered
        ):
            learn.append(Action("T", stage, self._entered[target]))
        self._entered.pop(self.tick_count - self._flight, None)
        self.tick_count += 1
        if delay and method.order == "backward-first":
            return backward + forward + learn
        return forward + backward + learn

    def final_update(self) -> list[Action]:
        """The update with gradients that are too few for one, once nothing is in flight."""
        waiting, self._gathered = self._gathered, 0
        return [Action("U", self.stage, self.batch_count - 1)] if waiting else []


class Program:
    """The ticks of a method on K stages, computed while batches arrive.

    Raises:
        OptionError: There is less than one stage.
    """

    def __init__(self, method: Method, stages: int) -> None:
        if stages < 1:
            raise OptionError(f"a program has {stages} stages; use at least 1")
        self.method = method
        self.schedules = [StageSchedule(method, stages, stage) for stage in range(stages)]

    @property
    def tick_count(self) -> int:
        """The number of the next tick."""
        return self.schedules[0].tick_count

    @property
    def batch_count(self) -> int:
        """How many batches have entered."""
        return self.schedules[0].batch_count

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return self.schedules[0].idle

    def tick(self) -> Tick:
        """The next tick, at which a new batch enters."""
        return self._merge([column.tick() for column in self.schedules])

    def drain_tick(self) -> Tick:
        """The next tick, at which none enters."""
        return self._merge([column.drain_tick() for column in self.schedules])

    def final_update(self) -> Tick:
        """The updates with gradients that are too few for one, once nothing is in flight."""
        return tuple(action for column in self.schedules for action in column.final_update())

    def _merge(self, columns: list[list[Action]]) -> Tick:
        """The columns as one list in which whatever an action needs of this tick is earlier.

        An edge without delay makes a stage wait inside the tick: that is its lock.
        """
        merged: list[Action] = []
        here = {action for column in columns for action in column}

        def ready(action: Action) -> bool:
            need = dependency(action, self.method, len(self.schedules))
            return need not in here or need in merged

        while any(columns):
            for column in columns:
                while column and ready(column[0]):
                    merged.append(column.pop(0))
        return tuple(merged)


def unroll(method: Method, stages: int, batches: int | Iterable[int]) -> Iterator[Tick]:
    """All ticks of a training, drained at its end.

    Args:
        method: The method.
        stages: K.
        batches: Batches of the training, or of each of its epochs.

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
            yield program.tick()
        if method.epoch_end == "drain":
            yield from drain(program)
    yield from drain(program)


Actions = TypeVar("Actions", bound=Sequence[Action], covariant=True)


class Drainable(Protocol[Actions]):
    """A program, or one stage's column of it."""

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""

    def drain_tick(self) -> Actions:
        """The actions of the next tick, at which no batch enters."""

    def final_update(self) -> Actions:
        """The updates with gradients that are too few for one."""


def drain(program: Drainable[Actions]) -> Iterator[Actions]:
    """The ticks that complete everything in flight and apply every gradient.

    A group of gradients that is not full is applied when nothing is in flight any more, so
    that no stage needs to know beforehand which batch is the last.
    """
    while not program.idle:
        yield program.drain_tick()
    if flushed := program.final_update():
        yield flushed


def parse_program(text: str) -> list[Tick]:
    r"""The ticks of a printed program: a line each, actions between spaces.

    Raises:
        ProgramError: A word is not an action.

    >>> parse("F0.0\nF0.1 F1.0 B1.0")[1][2]
    Action(kind='B', stage=1, batch=0)
    """
    return [tuple(Action.parse(word) for word in line.split()) for line in text.splitlines()]


def check_program(ticks: Sequence[Tick], method: Method, stages: int) -> None:
    """Refuse a program that loses, doubles or mis-times anything.

    Raises:
        ProgramError: With every rule that is broken.
    """
    problems: list[str] = []
    place: dict[Action, tuple[int, int]] = {}
    for t, tick in enumerate(ticks):
        for i, action in enumerate(tick):
            if action in place:
                problems.append(
                    f"tick {t}: {action} happened already in tick {place[action][0]}"
                )
            if not 0 <= action.stage < stages:
                problems.append(f"tick {t}: {action} is for none of the {stages} stages")
            place[action] = (t, i)
    batches = 1 + max((action.batch for action in place), default=-1)
    updates = [(a, Action("B", a.stage, a.batch), 0) for a in place if a.kind == "U"]
    for action, need, delay in chain(_rules(method, stages, batches), updates):
        if need not in place:
            problems.append(f"{need} never happens; {action} needs it")
        elif action not in place:
            problems.append(f"{action} never happens; batch {action.batch} is lost there")
        elif place[action] < place[need] or place[action][0] < place[need][0] + delay:
            t, t0 = place[action][0], place[need][0]
            problems.append(
                f"tick {t}: {action} comes too early; {need} is in tick {t0} and takes "
                f"{delay} ticks to get there"
            )
    problems += _uncounted(ticks, method, stages)
    if problems:
        raise ProgramError(listed(f"not a program of {method.name!r}", problems))


def _rules(method: Method, stages: int, batches: int) -> Iterator[tuple[Action, Action, int]]:
    """What must happen: an action, what it needs, and how many ticks before."""
    for batch in range(batches):
        for k in range(stages):
            forward, backward = Action("F", k, batch), Action("B", k, batch)
            yield backward, forward, 0
            learns = method.signal.learns_from_gradient and k < stages - 1
            for action in (forward, backward, *([Action("T", k, batch)] if learns else [])):
                if (need := dependency(action, method, stages)) is not None:
                    delays = {"F": method.forward_delay, "B": method.backward_delay}
                    yield action, need, delays[need.kind]


def _uncounted(ticks: Sequence[Tick], method: Method, stages: int) -> list[str]:
    """Gradients that no update takes, or too many for one update."""
    problems = []
    gathered = [0] * stages
    for t, tick in enumerate(ticks):
        for action in (a for a in tick if 0 <= a.stage < stages):
            if action.kind == "B":
                gathered[action.stage] += 1
            elif action.kind == "U":
                if not 1 <= gathered[action.stage] <= method.accumulate:
                    problems.append(
                        f"tick {t}: {action} takes {gathered[action.stage]} gradients; "
                        f"wanted 1 to {method.accumulate}"
                    )
                gathered[action.stage] = 0
    problems += [
        f"stage {k} ends with {count} gradients that no update takes"
        for k, count in enumerate(gathered)
        if count
    ]
    return problems


def format_program(ticks: Iterable[Tick], stages: int) -> str:
    """The program as text: a line per tick, a column per stage.

    >>> from hocket.methods import FDG
    >>> print(draw(unroll(FDG(), 2, 2), 2))
    tick | stage 0     | stage 1
       0 | F0          |
       1 | F1          | F0 B0 U0
       2 | B0 U0       | F1 B1 U1
       3 | B1 U1       |
    """
    rows = [
        [" ".join(f"{a.kind}{a.batch}" for a in tick if a.stage == k) for k in range(stages)]
        for tick in ticks
    ]
    wide = max([len(cell) for row in rows for cell in row] + [11])
    lines = ["tick | " + " | ".join(f"stage {k}".ljust(wide) for k in range(stages))]
    lines += [
        f"{t:4d} | " + " | ".join(cell.ljust(wide) for cell in row)
        for t, row in enumerate(rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
