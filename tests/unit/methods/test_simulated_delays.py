"""Delays are lengthened on all edges or on some, or follow from the staleness of each stage."""

import re

import pytest

from contract.small import data, different, mlp, sgd, train
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import ADL, BP, DDG, DGL, FDG, METHODS, OneFOneB, PipeDream, PipeDream2BW
from hocket.methods.simulated.delays import parse_extra_delay, with_extra_delay, with_staleness
from hocket.program import check_program, unroll
from hocket.runs.build import build_run_method
from hocket.runs.config import RunConfig


def test_one_number_lengthens_every_delay_there_is():
    assert [with_extra_delay(FDG(), 2).delay(k, 3) for k in range(3)] == [12, 6, 0]
    assert [with_extra_delay(DDG(), 2).delay(k, 3) for k in range(3)] == [6, 3, 0]
    assert with_extra_delay(DGL(), 2).entry(1) == 3
    assert with_extra_delay(FDG(), 0) == with_extra_delay(FDG(), [0, 0]) == FDG()
    assert with_extra_delay(BP(), 0) == BP()
    assert with_extra_delay(FDG(), [1000, 0]).delay(0, 3) == 2 + 2000 + 2


@pytest.mark.parametrize("name", ["fdg", "ddg", "fr", "adl", "dgl", "paci", "pipedream"])
def test_a_number_for_each_edge_is_one_for_all_if_they_are_equal(name):
    method = METHODS[name]()
    each, all_edges = with_extra_delay(method, [2, 2]), with_extra_delay(method, 2)
    assert list(unroll(each, 3, 9)) == list(unroll(all_edges, 3, 9))


def test_a_number_for_each_edge_lengthens_that_edge():
    method = with_extra_delay(ADL(accumulate=2), [1, 0])
    assert [method.delay(k, 3) for k in range(3)] == [6, 2, 0]
    assert [method.entry(k) for k in range(3)] == [0, 2, 3]
    check_program(list(unroll(method, 3, 9)), method, 3)
    assert list(map(parse_extra_delay, (2, "2", "1,0"))) == [2, 2, [1, 0]]
    assert build_run_method(RunConfig(stages=3, extra_delay="0,1")) == with_extra_delay(
        FDG(), [0, 1]
    )


@pytest.mark.parametrize("first", [[1, 2], [2, 0]])
@pytest.mark.parametrize("more", [1, 3])
def test_delays_of_single_edges_are_lengthened_as_those_of_all(more, first):
    one_by_one = with_extra_delay(with_extra_delay(FDG(), first), more)
    together = with_extra_delay(FDG(), [ticks + more for ticks in first])
    assert list(unroll(one_by_one, 3, 9)) == list(unroll(together, 3, 9))
    method = with_extra_delay(with_staleness(DDG(), [2, 0, 0]), more)
    assert [method.delay(k, 3) for k in range(3)] == [2 + more, 0, 0]


@pytest.mark.parametrize(
    ("method", "ticks", "said"),
    [
        (with_staleness(DDG(), [2, 1, 0]), [1] * 3, "has delays of 2 edges; give one number"),
        (with_staleness(DDG(), [0]), 1, "'ddg' has no delay that could be extended"),
        (BP(), 1, "'bp' has no delay that could be extended: its stages wait for each other"),
        (METHODS["dgl-async"](), 1, "'dgl-async' has no ticks"),
        (FDG(), -1, "extra_delay is -1; use whole numbers of ticks in [0, 1000]"),
        (FDG(), [1, 1001], "extra_delay is [1, 1001]; use whole numbers of ticks in [0, 1000]"),
        (FDG(), [], "extra_delay is []; use whole numbers"),
        (FDG(), [1.5, 0], "extra_delay is [1.5, 0]; use whole numbers"),
        *((FDG(), v, f"extra_delay is {v!r}; give a list") for v in (1.5, "1,0", None)),
    ],
)
def test_what_cannot_be_extended_is_refused(method, ticks, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        with_extra_delay(method, ticks)


def test_a_group_must_be_as_long_as_the_versions_need():
    method = with_extra_delay(PipeDream2BW(accumulate=3), [1, 1])
    with pytest.raises(OptionError, match="use accumulate=4 or more, or fewer stages"):
        Trainer(mlp(3), method=method, optimizer=sgd)


# Staleness of each stage.

PROFILES = [(0, 0, 0), (2, 1, 0), (1, 1, 0), (5, 0, 0), (7, 2, 0)]


@pytest.mark.parametrize("linearize", ["stash", "live", "recompute"])
@pytest.mark.parametrize("profile", PROFILES)
def test_measured_it_is_what_was_told(profile, linearize):
    method = with_staleness(FDG(linearize=linearize), profile)
    check_program(list(unroll(method, 3, 9)), method, 3)
    done = train(method, mlp(3), data(mlp, 12))
    for stage, wanted in enumerate(profile):
        seen = [event.report.staleness for event in done.of("B", stage)]
        assert seen == [min(batch, wanted) for batch in range(12)]
        assert [method.staleness(stage, 3, batch) for batch in range(12)] == seen


@pytest.mark.parametrize(("profile", "same"), [((0, 0, 0), BP()), ((2, 1, 0), DDG())])
def test_profiles_of_methods_are_these_methods(profile, same):
    """Bit-equal."""
    ours = train(with_staleness(FDG(), profile), mlp(3), data(mlp, 8))
    theirs = train(same, mlp(3), data(mlp, 8))
    assert different(ours.state, theirs.state) == []


def test_locks_memory_and_delays_follow_from_it():
    method = with_staleness(FDG(), (5, 2, 0))
    assert [method.delay(k, 3) for k in range(3)] == [5, 2, 0]
    assert method.memory(0, 3).graphs == 6
    assert method.locks() == ("forward",)
    assert with_staleness(FDG(), (2, 2, 0)).locks() == ("forward", "backward", "update")
    assert with_staleness(FDG(), (1000, 0)).delay(0, 2) == 1000


IMPOSSIBLE = [(), (1,), (1, 2, 0), (0, -1, 0), (1001, 0), (1.5, 0), ("1", "0")]
WITHOUT = [DGL(), ADL(), PipeDream(hold="vertical"), METHODS["dgl-async"](), OneFOneB()]


@pytest.mark.parametrize(
    ("method", "profile", "said"),
    [
        *((DDG(), p, f"staleness is {list(p)}; write whole numbers") for p in IMPOSSIBLE),
        *((DDG(), v, f"staleness is {v!r}; give a list") for v in (3, "6,3,0", None)),
        *((m, (1, 0), f"and method '{m.name}' has none to choose: that n") for m in WITHOUT),
    ],
)
def test_what_no_gradient_could_do_is_refused(method, profile, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        with_staleness(method, profile)


@pytest.mark.parametrize("profile", [(0,), *PROFILES])
def test_there_is_one_for_each_stage(profile):
    method, length = with_staleness(DDG(), profile), len(profile)
    method.require_stages(length)
    for stages in {1, 2, 4} - {length}:
        said = f"delays of the edges between {length} stages, and there are {stages}"
        with pytest.raises(OptionError, match=said):
            Trainer(mlp(stages), method=method, optimizer=sgd)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"staleness": "3,x"}, "staleness is '3,x'; write a number for each stage: 6,4,2,0"),
        ({"staleness": "3,1,0"}, "delays of the edges between 3 stages, and there are 2"),
        ({"staleness": "3,0", "extra_delay": 1}, "extra_delay is 1 and staleness is '3,0'"),
        ({"extra_delay": "1,x"}, "extra_delay is '1,x'; write a number of ticks for all edges"),
        ({"extra_delay": "1,0"}, "has delays of the edges between 3 stages, and there are 2"),
    ],
)
def test_a_run_refuses_delays_that_it_cannot_read(choices, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        build_run_method(RunConfig(**choices))
