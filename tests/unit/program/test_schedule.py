"""The schedule of a stage goes on where another was, also one of stages cut elsewhere."""

import pytest

from hocket.methods import ADL, FDG, METHODS, PipeDream
from hocket.program.program import drain, enter
from hocket.program.schedule import StageSchedule
from hocket.remedies import T3

STAGES = 3
STEPS = [*[enter] * 7, drain, *[enter] * 4, drain]
"""Seven batches, and four more after the pipeline was drained."""
METHODS_AND_T3 = {
    **{name: build() for name, build in METHODS.items()},
    "t3": FDG().with_remedies(T3(updates=3)),
    "adl t3": ADL(accumulate=2).with_remedies(T3(updates=4)),
    "vertical": PipeDream(hold="vertical"),
}
every = pytest.mark.parametrize("method", METHODS_AND_T3.values(), ids=METHODS_AND_T3)
each_stage = pytest.mark.parametrize("stage", range(STAGES))


def actions(schedule, steps, since=0):
    """Kind, batch, version (counted on from some update) and due of each action, by tick."""
    return [
        [(a.kind, a.batch, None if a.version is None else a.version - since, a.due) for a in t]
        for step in steps
        for t in step(schedule)
    ]


@every
@each_stage
def test_between_two_trainings_of_other_cuts_only_versions_are_counted_anew(method, stage):
    """As if the stages had always been these; the first updates of T3 are not done again."""
    first, other, resumed = (StageSchedule(method, STAGES, stage) for _ in range(3))
    done = actions(first, STEPS[:8])
    updates = sum(kind == "U" for tick in done for kind, *_ in tick)
    other.start_at(first.tick_count, first.batch_count, updates)
    assert (other.tick_count, other.batch_count) == (first.tick_count, 7)
    resumed.load_state_dict(other.state_dict())
    wanted = actions(first, STEPS[8:], since=updates)
    assert actions(other, STEPS[8:]) == actions(resumed, STEPS[8:]) == wanted
