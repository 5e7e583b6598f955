"""Programs: a method on K stages as ticks of actions, without tensors.

FDG on three stages. Every packet takes one tick, to the next stage as to the stage before, so
that batch 0 returns to stage 0 in tick 4:

>>> from hocket.methods import FDG
>>> print(format_program(unroll(FDG(), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          |             |
   1 | F1          | F0          |
   2 | F2          | F1          | F0 B0 U0
   3 | F3          | B0 U0 F2    | F1 B1 U1
   4 | B0 U0       | B1 U1 F3    | F2 B2 U2
   5 | B1 U1       | B2 U2       | F3 B3 U3
   6 | B2 U2       | B3 U3       |
   7 | B3 U3       |             |

``F2.5`` means that stage 2 forwards batch 5, ``F2.5@3`` that it does so with the weights that
had seen 3 updates, and else with its newest; ``B`` that it back-propagates it, ``U`` that it
updates its weights with the gradients accumulated up to that batch, ``T`` that its signal
learns from the target that came back for it. Stages and batches are counted from 0.

Batch b enters at tick s. Stage k forwards it at ``s + k*df`` and back-propagates it
``(K-1-k)(df + db)`` ticks later, where df and db are the delays of an edge.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar, cast

from hocket.errors import OptionError, ProgramError, format_problems
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
    def name(self) -> str:
        """The action without the version of the weights."""
        return f"{self.kind}{self.stage}.{self.batch}"

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


class StageSchedule:
    """Schedule of one stage, computed tick by tick while batches arrive.

    Args:
        method: Method of the training.
        stages: Number of stages (K).
        stage: Number of this stage.

    Raises:
        OptionError: The method is impossible on so many stages.
    """

    def __init__(self, method: Method, stages: int, stage: int) -> None:
        method.require_stages(stages)
        self.method = method
        self.stages = stages
        self.stage = stage
        self.tick_count = 0
        self.batch_count = 0
        self._entered: dict[int, int] = {}  # tick -> batch, of the batches in flight
        self._accumulated = 0  # gradients since the last update
        self._updates = 0
        self._drained = (0, 0)  # batches and updates when nothing was in flight
        self._flight = method.flight(stages)
        # Of every tick, and sums over all stages.
        self._entry, self._delay = method.entry(stage), method.delay(stage, stages)
        has_next = stage < stages - 1
        self._learns = method.signal.learns_from_gradient and has_next
        self._answer_delay = sum(method.edge_delay(stage)) if has_next else 0
        self._holds = method.holds(stages)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the batches in flight, as plain values."""
        return {
            "tick_count": self.tick_count,
            "batch_count": self.batch_count,
            "entered": dict(self._entered),
            "gathered": self._accumulated,
            "updates": self._updates,
            "drained": self._drained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a schedule of the same stage."""
        self.tick_count, self.batch_count = state["tick_count"], state["batch_count"]
        self._entered = dict(state["entered"])
        self._accumulated = state["gathered"]
        self._updates = state["updates"]
        self._drained = tuple(state["drained"])

    def start_at(self, tick_count: int, batch_count: int) -> None:
        """Continue from these counts, with no batch in flight."""
        self.tick_count, self.batch_count = tick_count, batch_count
        self._entered, self._accumulated = {}, 0
        self._drained = (batch_count, self._updates)

    @property
    def idle(self) -> bool:
        """True if no batch is in flight at any stage."""
        return not self._entered

    def tick(self) -> list[Action]:
        """Return the stage's actions in the next tick, in which a new batch enters."""
        self._entered[self.tick_count] = self.batch_count
        self.batch_count += 1
        return self.drain_tick()

    def drain_tick(self) -> list[Action]:
        """Return the stage's actions in the next tick, in which no batch enters."""
        method, stage = self.method, self.stage
        # Ticks at which the batches entered that are due here now.
        for_forward = self.tick_count - self._entry
        for_backward = for_forward - self._delay
        for_target = for_forward - self._answer_delay
        forward, backward, learn = [], [], []
        if for_forward in self._entered:
            batch = self._entered[for_forward]
            forward.append(self._forward(batch))
        if for_backward in self._entered:
            backward.append(Action("B", stage, batch := self._entered[for_backward]))
            self._accumulated += 1
            if self._accumulated == method.accumulate:
                backward.append(Action("U", stage, batch))
                self._accumulated = 0
                self._updates += 1
        if self._learns and for_target in self._entered:
            learn.append(Action("T", stage, self._entered[for_target]))
        self._entered.pop(self.tick_count - self._flight, None)
        self.tick_count += 1
        if self._delay and method.order == "backward-first":
            return backward + forward + learn
        return forward + backward + learn

    def _forward(self, batch: int) -> Action:
        """Return the forward of a batch."""
        batches, updates = self._drained
        place = self.stage, self.stages, batch - batches
        version = updates + self.method.forward_version(*place) if self._holds else None
        due = int(self.method.staleness(*place))
        return Action("F", self.stage, batch, version, due)

    def final_update(self) -> list[Action]:
        """Return the update with the remaining gradients, once no batch is in flight."""
        remaining, self._accumulated = self._accumulated, 0
        self._updates += remaining > 0
        self._drained = (self.batch_count, self._updates)
        return [Action("U", self.stage, self.batch_count - 1)] if remaining else []


class Program:
    """Program of a method on K stages, computed tick by tick while batches arrive.

    Raises:
        OptionError: There is less than one stage.
    """

    def __init__(self, method: Method, stages: int) -> None:
        if stages < 1:
            raise OptionError(f"a program has {stages} stages; use at least 1")
        self.method = method
        self.schedules = [StageSchedule(method, stages, stage) for stage in range(stages)]
        self._orders: dict[tuple[tuple[Kind, int, int], ...], list[int]] = {}

    @property
    def tick_count(self) -> int:
        """Number of the next tick."""
        return self.schedules[0].tick_count

    @property
    def batch_count(self) -> int:
        """Number of batches that have entered."""
        return self.schedules[0].batch_count

    @property
    def idle(self) -> bool:
        """True if no batch is in flight."""
        return self.schedules[0].idle

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
        actions = [action for column in columns for action in column]
        base = min((action.batch for action in actions), default=0)
        pattern = tuple((a.kind, a.stage, a.batch - base) for a in actions)
        if pattern not in self._orders:
            self._orders[pattern] = list(map(actions.index, self._ordered(columns)))
        return tuple(actions[place] for place in self._orders[pattern])

    def _ordered(self, columns: list[list[Action]]) -> list[Action]:
        """Return the actions of all columns, which are emptied, in an order that works."""
        merged: list[Action] = []
        in_tick = {action for column in columns for action in column}

        def ready(action: Action) -> bool:
            need = dependency(action, self.method, len(self.schedules))
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
            yield program.tick()
        if method.epoch_end == "drain":
            yield from drain(program)
    yield from drain(program)


ActionsT = TypeVar("ActionsT", bound=Sequence[Action], covariant=True)


class Drainable(Protocol[ActionsT]):
    """A program, or the schedule of one stage."""

    @property
    def idle(self) -> bool:
        """True if no batch is in flight."""

    def drain_tick(self) -> ActionsT:
        """Return the actions of the next tick, in which no batch enters."""

    def final_update(self) -> ActionsT:
        """Return the updates with the remaining gradients."""


def drain(program: Drainable[ActionsT]) -> Iterator[ActionsT]:
    """Yield the ticks that complete all batches in flight and apply all gradients.

    Remaining gradients, too few for an ordinary update, are applied when no batch is in flight
    any more, so that no stage needs to know in advance which batch is the last.
    """
    while not program.idle:
        yield program.drain_tick()
    if updates := program.final_update():
        yield updates


def parse_program(text: str) -> list[Tick]:
    r"""Return the ticks of a printed program: one per line, actions separated by spaces.

    Raises:
        ProgramError: A word is not an action.

    >>> parse_program("F0.0\nF0.1 F1.0 B1.0")[1][2].kind
    'B'
    """
    return [tuple(Action.parse(word) for word in line.split()) for line in text.splitlines()]


def check_program(ticks: Sequence[Tick], method: Method, stages: int) -> None:
    """Refuse a program with actions that are missing, doubled or too early.

    Args:
        ticks: Ticks of the program.
        method: Method that the program is to be one of.
        stages: Number of stages (K).

    Raises:
        ProgramError: A rule is broken; the message lists all of them.
    """
    problems: list[str] = []
    position: dict[Action, tuple[int, int]] = {}  # tick, place in the tick
    for t, tick in enumerate(ticks):
        for i, action in enumerate(tick):
            if action in position:
                problems.append(
                    f"tick {t}: {action} happened already in tick {position[action][0]}"
                )
            if not 0 <= action.stage < stages:
                problems.append(f"tick {t}: {action} is for none of the {stages} stages")
            position[action] = (t, i)
    batches = 1 + max((action.batch for action in position), default=-1)
    updates = [(a, Action("B", a.stage, a.batch), 0) for a in position if a.kind == "U"]
    for action, need, delay in chain(_requirements(method, stages, batches), updates):
        if need not in position:
            problems.append(f"{need} never happens; {action} needs it")
        elif action not in position:
            problems.append(f"{action} never happens; batch {action.batch} is lost there")
        elif (
            position[action] < position[need] or position[action][0] < position[need][0] + delay
        ):
            t, t0 = position[action][0], position[need][0]
            problems.append(
                f"tick {t}: {action} comes too early; {need} is in tick {t0} and takes "
                f"{delay} ticks to get there"
            )
    problems += _accumulation_problems(ticks, method, stages)
    problems += _version_problems(ticks, method, stages)
    if problems:
        raise ProgramError(format_problems(f"not a program of {method.name!r}", problems))


def _requirements(
    method: Method, stages: int, batches: int
) -> Iterator[tuple[Action, Action, int]]:
    """Yield each action, an action that it needs, and the ticks that a packet takes between."""
    for batch in range(batches):
        for k in range(stages):
            forward, backward = Action("F", k, batch), Action("B", k, batch)
            yield backward, forward, 0
            learns = method.signal.learns_from_gradient and k < stages - 1
            for action in (forward, backward, *([Action("T", k, batch)] if learns else [])):
                if (need := dependency(action, method, stages)) is not None:
                    delays = method.edge_delay(min(action.stage, need.stage))
                    yield action, need, delays["FB".index(need.kind)]


def _accumulation_problems(ticks: Sequence[Tick], method: Method, stages: int) -> list[str]:
    """Return the problems of updates with too few or too many gradients."""
    problems = []
    accumulated = [0] * stages
    for t, tick in enumerate(ticks):
        for action in (a for a in tick if 0 <= a.stage < stages):
            if action.kind == "B":
                accumulated[action.stage] += 1
            elif action.kind == "U":
                if not 1 <= accumulated[action.stage] <= method.accumulate:
                    problems.append(
                        f"tick {t}: {action} takes {accumulated[action.stage]} gradients; "
                        f"wanted 1 to {method.accumulate}"
                    )
                accumulated[action.stage] = 0
    problems += [
        f"stage {k} ends with {count} gradients that no update takes"
        for k, count in enumerate(accumulated)
        if count
    ]
    return problems


def _version_problems(ticks: Sequence[Tick], method: Method, stages: int) -> list[str]:
    """Return the problems of forwards with weights that a stage does not hold."""
    problems = []
    updates = [0] * stages
    versions: dict[int, int | None] = {}  # of the weights that a batch was first forwarded with
    for t, tick in enumerate(ticks):
        for action in (a for a in tick if 0 <= a.stage < stages):
            updates[action.stage] += action.kind == "U"
            if action.kind != "F":
                continue
            first = versions.setdefault(action.batch, action.version)
            if (action.version is not None) != method.holds(stages):
                wanted = "wanted one" if action.version is None else "wanted the newest weights"
                problems.append(
                    f"tick {t}: {action} names {'no' if action.version is None else 'a'} "
                    f"version; {wanted}"
                )
            elif action.version != first:
                problems.append(
                    f"tick {t}: {action} has other weights than batch {action.batch} met "
                    f"before; wanted version {first}"
                )
            elif action.version is not None and action.version > updates[action.stage]:
                problems.append(
                    f"tick {t}: {action} needs weights that do not exist; stage "
                    f"{action.stage} has done {updates[action.stage]} updates"
                )
    return problems


def format_program(ticks: Iterable[Tick], stages: int) -> str:
    """Return a program as text: one line per tick, one column per stage.

    >>> from hocket.methods import FDG
    >>> print(format_program(unroll(FDG(), 2, 2), 2))
    tick | stage 0     | stage 1
       0 | F0          |
       1 | F1          | F0 B0 U0
       2 | B0 U0       | F1 B1 U1
       3 | B1 U1       |
    """
    rows = [
        [" ".join(f"{a.kind}{a.label}" for a in tick if a.stage == k) for k in range(stages)]
        for tick in ticks
    ]
    width = max([len(cell) for row in rows for cell in row] + [11])
    lines = ["tick | " + " | ".join(f"stage {k}".ljust(width) for k in range(stages))]
    lines += [
        f"{t:4d} | " + " | ".join(cell.ljust(width) for cell in row)
        for t, row in enumerate(rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
