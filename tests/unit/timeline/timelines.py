"""Timelines for tests: arbitrary ones, and a simulated training."""

from itertools import chain

from hypothesis import strategies as st

from hocket.methods import FDG
from hocket.program import unroll
from hocket.timeline import Recorder, Span, Timeline
from hocket.timeline.recorder import KIND_NAMES


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


def simulated_fdg(stages=3, batches=8, forward_s=0.001):
    """Return a timeline of FDG with a slow stage 1.

    A backward takes two forwards, and a send a tenth of one. Forwards wait for their activation
    before they begin, backwards in their middle.
    """
    spans = []
    free = [0.0] * stages
    sent = {}
    for index, tick in enumerate(unroll(FDG(), stages, batches)):
        for action in tick:
            k, batch, kind = action.stage, action.batch, action.kind
            offset = 1 if kind == "F" else -1
            duration_s = forward_s * {"F": 1.0, "B": 2.0, "U": 0.3}[kind] * (1 + 0.2 * (k == 1))
            arrived_s = sent.get((kind, k - offset, batch), 0.0)
            start_s = free[k]
            needed_s = start_s if kind == "F" else start_s + duration_s / 4
            waits_s = max(arrived_s - needed_s, 0.0)
            if waits_s:
                spans.append(Span(k, "wait", batch, index, needed_s, needed_s + waits_s))
            if kind == "F":
                start_s += waits_s
            free[k] += duration_s + waits_s
            spans.append(Span(k, kind, batch, index, start_s, free[k]))
            if kind != "U" and 0 <= k + offset < stages:
                sent[kind, k, batch] = free[k] + forward_s / 10
                spans.append(Span(k, "send", batch, index, free[k], sent[kind, k, batch]))
                free[k] = sent[kind, k, batch]
    return Timeline(tuple(spans))
