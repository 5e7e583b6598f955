"""A training that has not been takes what its program and its parts take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.methods import ADL, BP, DDG, DGL, DNI, FDG, FR
from hocket.planner.simulate import StageTimes, shared, simulate, tick_s
from hocket.program import dependency, unroll

METHODS = [BP(), DDG(), FDG(), FDG().with_extra_delay(1), ADL(accumulate=3), FR(), DNI(), DGL()]
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
        (FDG().with_extra_delay(1), 3.0),
        (DGL(), 3.0),
    ],
    ids=str,
)
def test_what_a_batch_takes_once_all_stages_are_at_work(method, seconds):
    assert tick_s(method, [stage(packet_s=0.75)] * 3) == pytest.approx(seconds)


def test_the_slowest_stage_sets_the_pace():
    times = [stage(), stage(forward_s=4.0), stage()]
    assert tick_s(FDG().with_extra_delay(2), times) == pytest.approx(6.0)
    assert tick_s(DGL(), times) == pytest.approx(6.0)


def test_a_signal_that_learns_takes_its_time():
    spans = simulate(DNI(), [stage(), stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.0}
    slow = StageTimes(1.0, 2.0, 0.0, 0.0, learn_s=0.5)
    spans = simulate(DNI(), [slow, stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.5}


@pytest.mark.parametrize(
    ("method", "factor"), [(BP(), 1.0), (DGL(), 3.0), (FDG().with_extra_delay(1), 3.0)], ids=str
)
def test_stages_take_from_each_other_only_what_they_need_at_the_same_time(method, factor):
    times = shared(method, [stage()] * 2, [stage(3.0, 6.0)] * 2)
    assert [one.forward_s for one in times] == pytest.approx([factor] * 2, rel=0.02)


def test_a_stage_that_waits_half_of_the_time_slows_the_other_half_as_much():
    # The first stage works 4 s of the 8 s that the second one takes, which so has company for
    # half of its time, and the first for all of its.
    first, second = stage(1.0, 3.0), stage(2.0, 6.0)
    times = shared(FDG(), [first, second], [stage(1.0, 3.0), stage(4.0, 12.0)])
    assert times[0].forward_s == 1.0
    assert 2.0 < times[1].forward_s < 4.0


def jitter(*factors):
    return [dict.fromkeys("FBUT", factors)] * 2


@every
def test_times_that_do_not_vary_are_as_their_mean(method):
    assert tick_s(method, [stage()] * 2, jitter(1.0)) == pytest.approx(
        tick_s(method, [stage()] * 2)
    )


def test_stages_that_wait_for_each_other_wait_for_the_one_that_is_slow_at_the_moment():
    varied = {m: tick_s(m, [stage()] * 2, jitter(0.5, 1.5)) for m in (BP(), FDG(), DGL())}
    assert varied[BP()] == pytest.approx(6.0, rel=0.05)  # nobody is at work beside another
    assert varied[DGL()] == pytest.approx(3.0, rel=0.05)  # nobody waits for long
    assert 3.3 < varied[FDG()] < 4.5


def test_a_plan_that_is_asked_for_again_is_the_same():
    assert len({tick_s(FDG(), [stage()] * 2, jitter(0.5, 1.5)) for _ in range(3)}) == 1


def test_updates_count_once_for_a_group_of_gradients():
    times = [stage(update_s=3.0)] * 2
    assert tick_s(ADL(accumulate=3).with_extra_delay(1), times) == pytest.approx(4.0)
    assert tick_s(FDG().with_extra_delay(1), times) == pytest.approx(6.0)


@every
@given(st.lists(st.floats(0.01, 9.0), min_size=4, max_size=4))
def test_nothing_begins_before_what_it_takes_has_come(method, seconds):
    times = [stage(*seconds[:2], packet_s=seconds[2]), stage(seconds[3])]
    timeline = simulate(method, times, batches=6)
    spans = {(s.kind, s.stage, s.batch): s for s in timeline.spans if s.kind != "wait"}
    for tick in unroll(method, 2, 6):
        for action in tick:
            if need := dependency(action, method, 2):
                mine = spans[action.kind, action.stage, action.batch]
                fed = spans[need.kind, need.stage, need.batch]
                assert mine.start_s >= fed.end_s + seconds[2] - 1e-9
