"""A training that has not been takes what its program and its parts take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.methods import ADL, BP, DDG, DGL, DNI, FDG, FR
from hocket.planner.simulate import StageTimes, simulate, tick_s
from hocket.program import source, unroll

METHODS = [BP(), DDG(), FDG(), FDG().slackened(1), ADL(accumulate=3), FR(), DNI(), DGL()]
every = pytest.mark.parametrize("method", METHODS, ids=str)


def stage(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.0):
    return StageTimes(forward_s, backward_s, update_s, packet_s)


@every
def test_it_does_what_the_program_says(method):
    timeline = simulate(method, [stage()] * 3, batches=7)
    done = [(s.kind, s.stage, s.batch) for s in timeline.spans if s.kind != "wait"]
    wanted = [(a.kind, a.stage, a.batch) for tick in unroll(method, 3, 7) for a in tick]
    assert sorted(done) == sorted(wanted)


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        (BP(), 12.0),  # three stages, two borders over which a packet goes and one comes back
        (FDG().slackened(1), 3.0),
        (DGL(), 3.0),
    ],
    ids=str,
)
def test_what_a_batch_takes_once_all_stages_are_at_work(method, seconds):
    assert tick_s(method, [stage(packet_s=0.75)] * 3) == pytest.approx(seconds)


def test_the_slowest_stage_sets_the_pace():
    times = [stage(), stage(forward_s=4.0), stage()]
    assert tick_s(FDG().slackened(2), times) == pytest.approx(6.0)
    assert tick_s(DGL(), times) == pytest.approx(6.0)


def test_a_stage_that_recomputes_forwards_again():
    spans = simulate(FR(), [stage()] * 2, batches=3).spans
    lengths = {(s.stage, s.end_s - s.start_s) for s in spans if s.kind == "B"}
    assert lengths == {(0, 3.0), (1, 2.0)}


def test_updates_count_once_for_a_group_of_gradients():
    times = [stage(update_s=3.0)] * 2
    assert tick_s(ADL(accumulate=3).slackened(1), times) == pytest.approx(4.0)
    assert tick_s(FDG().slackened(1), times) == pytest.approx(6.0)


@every
@given(st.lists(st.floats(0.01, 9.0), min_size=4, max_size=4))
def test_nothing_begins_before_what_it_takes_has_come(method, seconds):
    times = [stage(*seconds[:2], packet_s=seconds[2]), stage(seconds[3])]
    timeline = simulate(method, times, batches=6)
    spans = {(s.kind, s.stage, s.batch): s for s in timeline.spans if s.kind != "wait"}
    for tick in unroll(method, 2, 6):
        for action in tick:
            if need := source(action, method, 2):
                mine = spans[action.kind, action.stage, action.batch]
                fed = spans[need.kind, need.stage, need.batch]
                assert mine.start_s >= fed.end_s + seconds[2] - 1e-9
