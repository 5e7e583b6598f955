"""Timelines for tests: arbitrary ones, and a simulated training."""

from dataclasses import replace
from itertools import chain

from hypothesis import strategies as st

from hocket.methods import FDG
from hocket.timeline import Recorder, Timeline
from hocket.timeline.recorder import KIND_NAMES
from hocket_lab.planner.simulate import StageTimes, simulate


def build_timeline(recorders):
    return Timeline(tuple(chain.from_iterable(recorder.spans for recorder in recorders)))


def recordings():
    """Return a strategy for recorders of up to three stages with nested spans."""
    inner = st.recursive(
        st.just([]),
        lambda deeper: st.lists(st.tuples(*SPAN, deeper), max_size=3),
        max_leaves=8,
    )
    return st.lists(inner, max_size=3).map(
        lambda stages: [record(stage, spans) for stage, spans in enumerate(stages)]
    )


SPAN = (
    st.sampled_from(list(KIND_NAMES)),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**8),  # nanoseconds until it starts, and from its last inside to its end
)


def record(stage, spans):
    """Return a recorder of these spans, on a clock of whole nanoseconds."""
    now_ns = 5 * 10**12
    recorder = Recorder(stage, clock=lambda: now_ns / 1e9)

    def play(spans):
        nonlocal now_ns
        for kind, batch, tick, pause_ns, inside in spans:
            now_ns += pause_ns
            with recorder.span(kind, batch, tick):
                play(inside)
                now_ns += pause_ns

    play(spans)
    return recorder


def simulated_fdg(stages=3, batches=8):
    """Return a timeline of FDG with a slow stage 1, whose first wait is made a send."""
    forwards_s = [0.001, 0.0012, *[0.001] * (stages - 2)]
    times = [StageTimes(each, 2 * each, 0.3 * each, 0.0001) for each in forwards_s]
    spans = list(simulate(FDG(), times, batches).spans)
    first = [span.kind for span in spans].index("wait")
    spans[first] = replace(spans[first], kind="send")
    return Timeline(tuple(spans))
