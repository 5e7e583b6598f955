"""Timelines that were never measured."""

from itertools import chain

from hypothesis import strategies as st

from hocket.methods import FDG
from hocket.program import unroll
from hocket.timeline import Recorder, Span, Timeline

KINDS = ("F", "B", "U", "T", "send", "wait")


def timeline_of(recorders):
    return Timeline(tuple(chain.from_iterable(recorder.spans for recorder in recorders)))


def recordings():
    """Recorders of up to three stages, which nested spans as a program might."""
    inner = st.recursive(
        st.just([]),
        lambda deeper: st.lists(st.tuples(*SPAN, deeper), max_size=3),
        max_leaves=8,
    )
    return st.lists(inner, max_size=3).map(
        lambda stages: [record(stage, spans) for stage, spans in enumerate(stages)]
    )


SPAN = (
    st.sampled_from(KINDS),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**8),  # nanoseconds until it starts, and from its last inside to its end
)


def record(stage, spans):
    """A recorder that has seen these spans on a clock of whole nanoseconds."""
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


def fdg(stages=3, batches=8, forward_s=0.001):
    """A training with FDG: a backward is two forwards, stage 1 slow, a send a tenth.

    Forwards wait for their activation before they begin, backwards in their middle.
    """
    spans = []
    free = [0.0] * stages
    sent = {}
    for now, tick in enumerate(unroll(FDG(), stages, batches)):
        for action in tick:
            k, batch, kind = action.stage, action.batch, action.kind
            step = 1 if kind == "F" else -1
            took_s = forward_s * {"F": 1.0, "B": 2.0, "U": 0.3}[kind] * (1 + 0.2 * (k == 1))
            arrived_s = sent.get((kind, k - step, batch), 0.0)
            start_s = free[k]
            needed_s = start_s if kind == "F" else start_s + took_s / 4
            waits_s = max(arrived_s - needed_s, 0.0)
            if waits_s:
                spans.append(Span(k, "wait", batch, now, needed_s, needed_s + waits_s))
            if kind == "F":
                start_s += waits_s
            free[k] += took_s + waits_s
            spans.append(Span(k, kind, batch, now, start_s, free[k]))
            if kind != "U" and 0 <= k + step < stages:
                sent[kind, k, batch] = free[k] + forward_s / 10
                spans.append(Span(k, "send", batch, now, free[k], sent[kind, k, batch]))
                free[k] = sent[kind, k, batch]
    return Timeline(tuple(spans))
