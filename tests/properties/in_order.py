"""The order of a program: no action is missing, doubled or before its packet."""

from collections import Counter
from collections.abc import Iterator, Sequence

from hocket.methods.method import Method
from hocket.program import Action, Tick, dependency


def assert_in_order(ticks: Sequence[Tick], method: Method, stages: int) -> None:
    """Assert that a program of so many stages obeys the delays of its method."""
    position: dict[Action, tuple[int, int]] = {}  # tick, place in the tick
    updates: Counter[int] = Counter()
    versions: dict[int, int | None] = {}  # with which the first stage forwarded a batch
    for t, tick in enumerate(ticks):
        for i, action in enumerate(tick):
            assert action not in position, f"{action} happens twice"
            assert 0 <= action.stage < stages
            position[action] = (t, i)
            updates[action.stage] += action.kind == "U"
            if action.kind == "F":
                assert (action.version is not None) == method.holds(stages)
                assert (action.version or 0) <= updates[action.stage], "no such weights yet"
                assert versions.setdefault(action.batch, action.version) == action.version
    batches = 1 + max((action.batch for action in position), default=-1)
    for action, need, delay in requirements(method, stages, batches):
        assert {action, need} <= position.keys(), f"{action} or {need} never happens"
        assert position[action] > position[need], f"{action} is before {need}"
        assert position[action][0] >= position[need][0] + delay, f"{action} is too early"
    for action in position:
        if action.kind == "U":
            assert position[action] > position[Action("B", action.stage, action.batch)]


def requirements(
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
