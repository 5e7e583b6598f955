"""Methods as text and objects: refusals, and the properties derived from their table."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest

import hocket
from contract.small import table
from hocket.errors import OptionError
from hocket.methods import (
    BP,
    DDG,
    DGL,
    DNI,
    FDG,
    FR,
    METHODS,
    GPipe,
    OneFOneB,
    PipeDream,
    build_method,
    method_options,
)
from hocket.methods.method import MemoryCount, Replay
from hocket.methods.registry import as_method, parse_method
from hocket.signals import Delayed, Local, Reach

WRONG = {
    "order": ("update-first", "order is 'update-first'; wanted 'forward-first' or 'backward"),
    "linearize": ("stale", "linearize is 'stale'; wanted 'stash' or 'live' or 'recompute'"),
    "reduce": ("max", "reduce is 'max'; wanted 'mean' or 'sum'"),
    "hold": ("oldest", "hold is 'oldest'; wanted 'newest' or 'vertical' or 'double'"),
    "statistics": ("twice", "statistics is 'twice'; wanted 'forward' or 'both'"),
    "epoch_end": ("stop", "epoch_end is 'stop'; wanted 'carry' or 'drain'"),
    "accumulate": (0, "accumulate is 0; use a number of at least 1"),
    "forward_delay": (-1, "forward_delay is -1; use a number in [0, 1000]"),
    "backward_delay": (1.5, "backward_delay is 1.5; wanted a whole number"),
    "first_stage_rate": (0.0, "first_stage_rate is 0.0; use a number above 0"),
}


def test_all_wrong_choices_are_reported_at_once():
    with pytest.raises(OptionError) as caught:
        table(**{field: value for field, (value, _) in WRONG.items()})
    assert "method 'table' cannot be built" in str(caught.value)
    assert [text for _, text in WRONG.values() if text not in str(caught.value)] == []
    for rate in (-1.0, float("nan"), float("inf"), True, "2"):
        with pytest.raises(OptionError, match="first_stage_rate is"):
            table(first_stage_rate=rate)


@pytest.mark.parametrize("linearize", ["stash", "live", "recompute"])
def test_choices_that_contradict_a_linearization_are_refused(linearize):
    if linearize == "recompute":
        assert table(statistics="both", linearize=linearize).statistics == "both"
    else:
        with pytest.raises(OptionError, match="there is no second pass to count"):
            table(statistics="both", linearize=linearize)
    if linearize != "stash":
        with pytest.raises(OptionError, match=r"hold='vertical' with linear.*leave hold at"):
            PipeDream(linearize=linearize, hold="vertical")


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_can_be_given_and_no_other_one(name):
    options, method = method_options(name), build_method(name)
    assert (method.name, bool(method.paper)) == (name, True)
    assert "name" not in options
    assert build_method(name, **options) == method
    with pytest.raises(OptionError, match="'shape'"):
        build_method(name, shape=3)


def test_memory_is_that_of_the_papers():
    """DDG keeps K-k+1 graphs, FDG forward-first 2(K-k)+1; FR keeps inputs instead.

    GPipe holds M batches at every stage, 1F1B min(K-k, M).
    """
    for k in range(4):
        assert DDG().memory(k, 4).graphs == 4 - k
        assert FDG(order="forward-first").memory(k, 4).graphs == 2 * (3 - k) + 1
        assert FR().memory(k, 4) == MemoryCount(graphs=1, inputs=4 - k, versions=1)
        assert FDG(linearize="live").memory(k, 4).versions == 1
        assert BP().memory(k, 4) == MemoryCount(graphs=1, inputs=1, versions=1)
        inputs = METHODS["dgl-async"](buffer=3).memory(k, 4).inputs
        assert inputs == (3 if k else 1)  # in front of the first stage is no buffer
        for build, held in ((GPipe, 2), (OneFOneB, min(4 - k, 2))):
            for recompute, graphs in ((False, held), (True, 1)):
                memory = build(accumulate=2, recompute=recompute).memory(k, 4)
                assert memory == MemoryCount(graphs=graphs, inputs=held, versions=1)


SHRINKS = [0, -0.5, 1.5, math.nan, math.inf, True, "0.5"]
SHRINK = r"shrink is .*; (use a number in \(0, 1\]|wanted a finite number)"
SIMILARITIES = [-0.1, 1, 1.5, math.nan, math.inf, True]
SIMILARITY = r"similarity is .*; use a number in \(0, 1\), or 0 to leave it off"


@pytest.mark.parametrize(
    ("build", "told"),
    [
        *((partial(build, shrink=v), SHRINK) for build in (Delayed, FDG) for v in SHRINKS),
        *((partial(DGL, similarity=v), SIMILARITY) for v in SIMILARITIES),
        (lambda: DNI(labels=1), "labels is 1; wanted true or false"),
        (lambda: Local(width=0.0), "width is 0.0; use a number above 0"),
        (lambda: Local(width=-1.0), "width is -1.0; use a number above 0"),
        (lambda: Local(width=math.inf), "width is inf; wanted a finite number"),
        (lambda: Local(width=math.nan), "width is nan; wanted a finite number"),
        (lambda: Local(depth=-1), "depth is -1; use a number of at least 0"),
        (lambda: Local(depth=1.5), "(?s)a local loss cannot be .*depth is 1.5; wanted a whole"),
        (lambda: Local(head="cnn", depth=2), "'cnn' has no hidden .*width=1.0 and depth=2"),
        (lambda: Local(head="cnn", width=2.0), "could change; leave them out, or use 'mlp'"),
        (lambda: Local(depth=0, width=2.0), "depth=0 leaves no hidden layers that width=2.0"),
        (lambda: Replay(buffer=0), "buffer is 0; use a number of at least 1"),
        (lambda: Replay(reuse=-1), "reuse is -1; use a number of at least 0"),
        (lambda: Replay(buffer=2.5), "buffer is 2.5; wanted a whole number"),
        (lambda: Replay(reuse=1.5), "reuse is 1.5; wanted a whole number"),
        (lambda: replace(FDG(), replay=Replay()), "the signal needs an answer for each batch"),
        (lambda: DGL(reach=-1), "reach is -1; .* at least 1"),
        (lambda: DGL(reach=1.5), "reach is 1.5; wanted a whole number"),
        (lambda: DGL(backward_delay=2), "backward_delay=2 with reach=0"),
        (lambda: build_method("dgl-async", reach=1), "'reach'"),
        (lambda: replace(DGL(reach=2), linearize="invert"), "linearize='invert' with reach=2"),
        (
            lambda: replace(OneFOneB(), linearize="invert"),
            "'alternate' with linearize='invert'",
        ),
        (lambda: replace(METHODS["dgl-async"](), signal=Reach(1)), "replay draws batches from"),
        *((partial(Reach, own=own), "give a local loss") for own in (Delayed(), Reach(), 3)),
        *(
            (partial(DGL, infopro=weights), "give two numbers from 0 on")
            for weights in ([1], [1, 1, 1, -1], [0, 0, 1, 1], [1, 1, 0, 0])
        ),
        (lambda: DGL(similarity=0.5, infopro=[1, 1, 1, 1]), r"similarity=0.5 with infopro"),
        (lambda: DGL(infopro=3), r"infopro is 3; give a list, such as \[3\]"),
        (lambda: replace(FDG(), signal=Delayed), "Delayed'>, which is no signal; give one"),
        (lambda: GPipe(recompute="no"), "recompute is 'no'; use True or False"),
    ],
)
def test_options_of_signals_and_replays_that_cannot_be_are_refused(build, told):
    with pytest.raises(OptionError, match=told):
        build()


def test_a_method_may_be_text():
    assert as_method("fdg:shrink=0.5") == hocket.FDG(shrink=0.5)
    assert as_method(hocket.BP()) == hocket.BP()
    assert parse_method("fdg + predict + t1") == parse_method("fdg+predict+t1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (hocket.FDG, "which is no method; call it"),
        (3, "method is 3, which is no method; give one such as hocket.FDG() or 'fdg'"),
        ("fgd", "unknown method 'fgd' (did you mean 'fdg'?)"),
        ("mine.py", "the method 'mine.py' is a file; name its function"),
        ("fdg+mine.py", "the remedy 'mine.py' is a file; name its function"),
    ],
)
def test_what_is_no_method_is_refused(given, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        as_method(given)
