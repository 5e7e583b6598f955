"""The time of a simulated training follows from its program and the times of its actions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.methods import ADL, BP, DDG, DGL, DNI, FDG, FR
from hocket.methods.simulated.delays import with_extra_delay
from hocket.program import dependency, unroll
from hocket_lab.planner.simulate import StageTimes, contended_times, simulate, tick_s

DELAYED = with_extra_delay(FDG(), 1)
METHODS = [BP(), DDG(), FDG(), DELAYED, ADL(accumulate=3), FR(), DNI(), DGL()]
every = pytest.mark.parametrize("method", METHODS, ids=str)


def stage(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.0):
    """Return the times of a stage, in seconds, of which the last is that of a packet."""
    return StageTimes(forward_s, backward_s, update_s, packet_s)


def test_the_learning_of_a_signal_takes_time():
    spans = simulate(DNI(), [stage(), stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.0}
    slow = StageTimes(1.0, 2.0, 0.0, 0.0, learn_s=0.5)
    spans = simulate(DNI(), [slow, stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.5}


def test_a_stage_that_waits_half_of_the_time_slows_the_other_one_half_as_much():
    # The first stage computes for 4 s of the 8 s of the second one. So the second one overlaps
    # with it for half of its time, and the first for all of its time.
    first, second = stage(1.0, 3.0), stage(2.0, 6.0)
    times = contended_times(FDG(), [first, second], [stage(1.0, 3.0), stage(4.0, 12.0)])
    assert times[0].forward_s == 1.0
    assert 2.0 < times[1].forward_s < 4.0


def jitter(*factors):
    return [dict.fromkeys("FBUT", factors)] * 2


def test_jitter_makes_ticks_longer_if_stages_wait_for_each_other():
    stages = [stage()] * 2
    for method in METHODS:
        assert tick_s(method, stages, jitter(1.0)) == pytest.approx(tick_s(method, stages))
    varied = {m: tick_s(m, stages, jitter(0.5, 1.5)) for m in (BP(), FDG(), DGL())}
    assert varied[BP()] == pytest.approx(6.0, rel=0.05)  # no two stages overlap
    assert varied[DGL()] == pytest.approx(3.0, rel=0.05)  # no stage waits for long
    assert 3.3 < varied[FDG()] < 4.5
    assert varied[FDG()] == tick_s(FDG(), stages, jitter(0.5, 1.5)), "reproducible"


@every
@given(st.lists(st.floats(0.01, 9.0), min_size=4, max_size=4))
def test_no_action_begins_before_its_packet_has_arrived(method, seconds):
    times = [stage(*seconds[:2], packet_s=seconds[2]), stage(seconds[3])]
    timeline = simulate(method, times, batches=6)
    spans = {(s.kind, s.stage, s.batch): s for s in timeline.spans if s.kind != "wait"}
    for tick in unroll(method, 2, 6):
        for action in tick:
            if needed := dependency(action, method, 2):
                receiver = spans[action.kind, action.stage, action.batch]
                sender = spans[needed.kind, needed.stage, needed.batch]
                assert receiver.start_s >= sender.end_s + seconds[2] - 1e-9


@every
@given(st.lists(st.floats(0.01, 9.0), min_size=4, max_size=4))
def test_each_stage_keeps_its_order_and_every_gap_is_a_wait(method, seconds):
    times = [StageTimes(*s, learn_s=0.5) for s in (seconds, reversed(seconds))]
    timeline = simulate(method, times, batches=6)
    program = [action for tick in unroll(method, 2, 6) for action in tick]
    for k in (0, 1):
        spans = [span for span in timeline.spans if span.stage == k]
        order = [(span.kind, span.batch) for span in spans if span.kind != "wait"]
        assert order == [(a.kind, a.batch) for a in program if a.stage == k]
        assert [s.end_s for s in spans[:-1]] == [s.start_s for s in spans[1:]]
