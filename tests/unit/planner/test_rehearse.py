"""A stage is rehearsed as it trains: it takes time, and holds what its method says."""

import copy
from statistics import fmean, median

import pytest
import torch

from hocket.methods import METHODS, build_method
from hocket.planner import rehearse
from hocket.planner.rehearsals import Candidate, rehearsed, rehearsed_together
from unit.planner.scenes import BATCH, FLOAT, NETWORK, WIDTH, scene


@pytest.mark.parametrize("name", METHODS)
def test_every_stage_of_every_method_takes_time_and_holds_memory(name):
    (stages,) = rehearsed(scene, [Candidate(name, ("1.0", "2"))])
    method = build_method(name)
    before = copy.deepcopy(NETWORK.state_dict())
    assert len(stages) == 3
    for k, stage in enumerate(stages):
        kinds = {kind for kind, seconds in stage.seconds.items() if seconds}
        assert kinds == {"F", "B", "U"} | (
            {"T"} if method.signal.learns_from_gradient and k < 2 else set()
        )
        helped = method.signal.learns_from_gradient or not method.signal.needs_gradient
        layers = FLOAT * (WIDTH**2 if k < 2 else 5 * (WIDTH + 1))
        assert (stage.weight_bytes > layers) == (helped and k < 2)
        assert stage.optimizer_bytes >= FLOAT * WIDTH * 5
        assert stage.peak_bytes > stage.weight_bytes + stage.optimizer_bytes
        assert stage.received_bytes == FLOAT * BATCH * WIDTH
    assert all(torch.equal(v, before[n]) for n, v in NETWORK.state_dict().items())
    assert all(weight.grad is None for weight in NETWORK.parameters())


def test_graphs_in_flight_and_old_weights_are_held():
    fdg, bp = rehearsed(scene, [Candidate(name, ("1.0", "2")) for name in ("fdg", "bp")])
    activation, weights = FLOAT * BATCH * WIDTH, FLOAT * WIDTH**2
    more = [one.peak_bytes - other.peak_bytes for one, other in zip(fdg, bp, strict=True)]
    # Four graphs instead of one: of what was received, a copy of it, and the output.
    assert more[0] == 3 * 3 * activation
    # Two of them, each with a copy of its weights.
    assert more[1] == 3 * activation + 2 * weights
    assert fdg[2].peak_bytes == bp[2].peak_bytes


@pytest.mark.parametrize(
    ("name", "rests"), [("fdg", [1, 2, 1]), ("dgl", [0, 1, 1])], ids=["fdg", "dgl"]
)
def test_a_stage_rests_before_it_takes_a_packet(name, rests, monkeypatch):
    cases = [Candidate(name, ("1.0", "2")), Candidate(name, ())]
    slept = []
    monkeypatch.setattr(rehearse.time, "sleep", slept.append)
    stages, (whole,) = rehearsed(scene, cases, with_idle=True, returns=False)
    ticks = rehearse.REPETITIONS
    assert [len(one.seconds["F"]) for one in (*stages, whole)] == [ticks] * 4
    assert slept == [rehearse.REST_S] * (sum(rests) * ticks)
    slept.clear()
    rehearsed(scene, cases)
    assert not slept


def test_there_and_back_each_stage_is_seen_twice():
    case = Candidate("bp", ("2",))
    for returns, visits in ((True, 2), (False, 1)):
        (stages,) = rehearsed(scene, [case], returns=returns)
        for stage in stages:
            assert len(stage.seconds["F"]) == visits * rehearse.REPETITIONS


def test_how_times_vary_is_told_apart_from_how_long_they_are():
    (stages,) = rehearsed(scene, [Candidate("bp", ("2",))])
    for stage in stages:
        assert stage.jitter["T"] == ()
        for kind in "FBU":
            assert median(stage.seconds[kind]) == stage.usual_s(kind)
            assert fmean(stage.jitter[kind]) == pytest.approx(1.0)
            assert stage.jitter[kind] == pytest.approx(
                [one / fmean(stage.seconds[kind]) for one in stage.seconds[kind]]
            )


def test_several_processes_rehearse_the_same():
    cases = [Candidate("bp", ("2",)), Candidate("dgl", ("2",))]
    found = rehearsed_together(scene, cases, processes=2, threads=1)
    alone = rehearsed(scene, cases)
    for case, other in zip(found, alone, strict=True):
        for stage, same in zip(case, other, strict=True):
            assert stage.peak_bytes == same.peak_bytes
            assert stage.seconds.keys() == same.seconds.keys()
            assert min(stage.seconds["B"]) > 0
