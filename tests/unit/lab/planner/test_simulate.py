"""The time of a simulated training follows from its program and the times of its actions."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.methods import ADL, BP, DDG, DGL, DNI, FDG, FR, PACI, GPipe, OneFOneB
from hocket.methods.simulated.delays import with_extra_delay
from hocket.program import dependency, unroll
from hocket_lab.planner.simulate import StageTimes, contended_times, simulate, tick_s
from hocket_lab.planner.window import TOLERANCE, bound_s, least_extra_delay

LAW = {
    "bp": BP(),
    "ddg": DDG(),
    "fdg": FDG(),
    "fdg forward-first": FDG(order="forward-first"),
    "fr": FR(),
    "adl": ADL(accumulate=4),
    "paci": PACI(accumulate=4),
    "dgl": DGL(),
    "dgl reach": DGL(reach=1),
    "fdg extra": with_extra_delay(FDG(), 1),
}
METHODS = [*LAW.values(), DNI()]
every = pytest.mark.parametrize("method", METHODS, ids=str)
by_law = pytest.mark.parametrize("method", LAW.values(), ids=LAW.keys())


def stage(forward_s=1.0, backward_s=2.0, update_s=0.0, packet_s=0.0):
    """Return the times of a stage, in seconds, of which the last is that of a packet."""
    return StageTimes(forward_s, backward_s, update_s, packet_s)


def test_the_learning_of_a_signal_takes_time():
    spans = simulate(DNI(), [stage(), stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.0}
    slow = StageTimes(1.0, 2.0, 0.0, 0.0, learn_s=0.5)
    spans = simulate(DNI(), [slow, stage()], batches=3).spans
    assert {s.end_s - s.start_s for s in spans if s.kind == "T"} == {0.5}


def test_gradients_that_are_sent_side_by_side_take_the_link_in_turn():
    times = [StageTimes(1.0, 2.0, 0.0, packet_s=4.0, transfer_s=4.0)] * 5
    assert [tick_s(DGL(reach=reach), times) for reach in (0, 2, 3)] == [4.0, 8.0, 8.0]


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
@settings(max_examples=15)
def test_each_stage_keeps_its_order_and_waits_for_packets_and_nothing_else(method, seconds):
    times = [StageTimes(*s, learn_s=0.5) for s in (seconds, reversed(seconds))]
    timeline = simulate(method, times, batches=6)
    program = [action for tick in unroll(method, 2, 6) for action in tick]
    for k in (0, 1):
        spans = [span for span in timeline.spans if span.stage == k]
        order = [(span.kind, span.batch) for span in spans if span.kind != "wait"]
        assert order == [(a.kind, a.batch) for a in program if a.stage == k]
        assert [s.end_s for s in spans[:-1]] == [s.start_s for s in spans[1:]]
    spans = {(s.kind, s.stage, s.batch): s for s in timeline.spans if s.kind != "wait"}
    for action in program:
        if needed := dependency(action, method, 2):
            receiver = spans[action.kind, action.stage, action.batch]
            sender = spans[needed.kind, needed.stage, needed.batch]
            assert receiver.start_s >= sender.end_s + seconds[3] - 1e-9


# The window law agrees with simulated programs, and chooses delays that hide the link.


def law_tick_s(method, times):
    """Return the seconds of a batch by the formula of docs/slow-links.md."""
    bounds_s, stages = [bound_s(method, times)], len(times)
    ahead = [method.memory(k, stages).inputs - 1 for k in range(stages)]
    for i, j in combinations(range(stages), 2):
        if method.signal.needs_gradient and not method.flushes:
            round_trip_s = sum(stage.forward_s + stage.backward_s for stage in times[i : j + 1])
            round_trip_s += sum(2 * stage.packet_s for stage in times[i:j])
            round_trip_s += times[i].update_s / method.accumulate
            bounds_s.append(round_trip_s / (ahead[i] - ahead[j] + 1))
    return max(bounds_s)


@by_law
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("packet_s", [0.0, 0.4, 1.5, 4.0])
def test_the_law_is_the_time_of_the_simulated_program(method, stages, packet_s):
    times = [StageTimes(1.0, 2.0, 0.2, packet_s)] * stages
    assert law_tick_s(method, times) == pytest.approx(tick_s(method, times), rel=0.025)


@pytest.mark.parametrize("extra", [0, 6, 18])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_link_of_any_delay_has_the_time_of_the_law(stages, extra):
    """Stages begin a burst of batches, wait for a gradient, and begin the next burst."""
    times = [StageTimes(1.0, 2.0, 0.0, packet_s=300.0)] * stages
    for method in (DDG(), FDG(order="forward-first"), ADL(accumulate=4)):
        late = with_extra_delay(method, extra)
        assert tick_s(late, times) == pytest.approx(law_tick_s(late, times), rel=0.005)


def uneven(seconds):
    """Return the times of four stages of these forwards, which share one with their packets."""
    pairs = zip(seconds[:4], seconds[3:], strict=True)
    return [StageTimes(f, 2 * f, 0.0, 2 * c) for f, c in pairs]


@by_law
@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=7))
@settings(max_examples=15)
def test_uneven_stages_are_no_faster_than_the_law(method, seconds):
    times = uneven(seconds)
    # The simulation takes the median over a few batches.
    assert tick_s(method, times) >= 0.97 * law_tick_s(method, times)


@pytest.mark.parametrize("name", ["ddg", "fdg", "fdg forward-first", "fr", "adl", "paci"])
@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=7))
@settings(max_examples=15)
def test_the_least_extra_delay_hides_the_link_and_one_less_does_not(name, seconds):
    method, times = LAW[name], uneven(seconds)
    longest_s = (1 + TOLERANCE) * bound_s(method, times)
    extra = least_extra_delay(method, times)
    assert law_tick_s(with_extra_delay(method, extra), times) <= longest_s
    assert tick_s(with_extra_delay(method, extra), times) <= 1.02 * longest_s
    for edge, ticks in enumerate(extra):
        if ticks:
            fewer = [*extra[:edge], ticks - 1, *extra[edge + 1 :]]
            assert law_tick_s(with_extra_delay(method, fewer), times) > longest_s


@pytest.mark.parametrize("method", [BP(), DGL(), GPipe(), OneFOneB()], ids=lambda m: m.name)
def test_nothing_is_extended_where_it_cannot_help(method):
    """A pipeline that is flushed stands idle beyond the law."""
    assert least_extra_delay(method, [StageTimes(1.0, 2.0, 0.0, 5.0)] * 3) == (0, 0)
    if method.flushes:
        times = [StageTimes(1.0, 2.0, 0.2, 0.5)] * 3
        assert law_tick_s(method, times) == bound_s(method, times) < tick_s(method, times)


@pytest.mark.parametrize(
    ("transfers", "wanted"), [((4.0, 4.0), 4.0), ((0.5, 9.0), 3.0)], ids=["taken", "last stage"]
)
def test_no_delay_hides_a_link_that_is_always_taken(transfers, wanted):
    """The last stage sends nothing."""
    times = [StageTimes(1.0, 2.0, 0.0, packet_s=s + 0.5, transfer_s=s) for s in transfers]
    for method in (DGL(), with_extra_delay(FDG(), 3)):
        assert bound_s(method, times) == law_tick_s(method, times) == wanted
        assert tick_s(method, times) == pytest.approx(wanted)
