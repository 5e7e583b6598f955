"""Check of a program against the rules of its method."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from hocket.errors import ProgramError, raise_problems
from hocket.methods.method import Method
from hocket.program.action import Action, Tick, dependency

TimedActions: TypeAlias = Sequence[tuple[int, Action]]
"""Actions of a program with their ticks."""


def check_program(ticks: Sequence[Tick], method: Method, stages: int) -> None:
    """Refuse a program with actions that are missing, doubled or too early.

    Args:
        ticks: Ticks of the program.
        method: Method that the program is to be one of.
        stages: Number of stages (K).

    Raises:
        ProgramError: A rule is broken; the message lists all of them.
        OptionError: The method is impossible on so many stages.
    """
    method.require_stages(stages)

    # The place of each action, which happens once.
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

    # Each action that is needed happens, and early enough.
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

    # Updates, versions of weights and flushes are those of the method.
    actions = [(t, a) for t, tick in enumerate(ticks) for a in tick if 0 <= a.stage < stages]
    problems += _accumulation_problems(actions, method, stages)
    problems += _version_problems(actions, method, stages)
    problems += _flush_problems(actions, method, stages)
    raise_problems(ProgramError, f"not a program of {method.name!r}", problems)


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


def _accumulation_problems(actions: TimedActions, method: Method, stages: int) -> list[str]:
    """Return the problems of updates with too few or too many gradients."""
    problems = []
    accumulated, returned, entered = [0] * stages, [0] * stages, 0
    last_forward = max([i for i, (_, a) in enumerate(actions) if a.kind == "F"], default=-1)
    for i, (t, action) in enumerate(actions):
        k = action.stage
        entered += (action.kind, k) == ("F", 0)
        if action.kind == "B":
            accumulated[k] += 1
            returned[k] += 1
        elif action.kind == "U":
            count, accumulated[k] = accumulated[k], 0
            ends = method.epoch_end == "drain" or i > last_forward
            drained = ends and returned == [entered] * stages
            if count != method.accumulate and not (drained and 0 < count < method.accumulate):
                problems.append(
                    f"tick {t}: {action} takes {count} gradients; wanted {method.accumulate}, "
                    "or fewer where the pipeline is drained at an end"
                )
    problems += [
        f"stage {k} ends with {count} gradients that no update takes"
        for k, count in enumerate(accumulated)
        if count
    ]
    return problems


def _version_problems(actions: TimedActions, method: Method, stages: int) -> list[str]:
    """Return the problems of forwards with weights that a stage does not hold."""
    problems = []
    updates = [0] * stages
    versions: dict[int, int | None] = {}  # of the weights that a batch was first forwarded with
    for t, action in actions:
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


def _flush_problems(actions: TimedActions, method: Method, stages: int) -> list[str]:
    """Return the problems of batches that enter a stage before it has updated with others."""
    problems = []
    updates = [0] * stages
    in_flight: list[list[int]] = [[] for _ in range(stages)]
    returned = [False] * stages  # since the last update
    for t, action in actions:
        k = action.stage
        if action.kind == "F":
            in_flight[k].append(action.batch)
            if returned[k] and method.flush == "all-forward":
                problems.append(
                    f"tick {t}: {action} comes after a backward of its group; all forwards "
                    "come first"
                )
        elif action.kind == "B":
            in_flight[k] = [batch for batch in in_flight[k] if batch != action.batch]
            returned[k] = True
        elif action.kind == "U":
            if in_flight[k] and updates[k] < method.flushed_updates:
                problems.append(
                    f"tick {t}: {action} leaves batches {in_flight[k]} in flight; wanted "
                    "none, as the pipeline is flushed"
                )
            returned[k] = False
            updates[k] += 1
    return problems
