"""Replicas that are late or meet rarely: processes equal a naive twin, and resume exactly."""

from functools import cache

import pytest
from torch import Tensor, nn

from contract.late_replicas import (
    CASES,
    PROCESSES,
    REMEDIES,
    RESUMED,
    SUMMED,
    seen,
    train_all,
    with_replicas,
)
from contract.processes import in_processes
from contract.small import SGD, bits, data, different, far, mlp, tensors_of, train
from contract.worlds import NETS, Case, trained
from hocket import Checkpoints, cross_entropy
from hocket.checkpoint.directory import newest_first
from hocket.distributed.replicas.meet import as_meet
from hocket.methods import FDG, with_staleness
from reference import replicas as naive

pytestmark = pytest.mark.xdist_group("late replicas")
ALL = list(dict.fromkeys([*CASES, *RESUMED, *SUMMED]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def done(folder):
    return cache(lambda: in_processes(train_all, str(folder), processes=PROCESSES))


def twin(case: Case, stages: int) -> list[Tensor]:
    net, options = NETS[case.net], dict(case.trainer)
    meet = as_meet(options.get("meet"))
    copies = [net(stages) for _ in range(PROCESSES // stages)]
    naive.train(
        copies,
        data(net, case.batches, case.size),
        loss=cross_entropy,
        accumulate=dict(case.options).get("accumulate", 1),
        delay=options.get("replica_delay", 0),
        meet=None if meet is None else vars(meet),
        **{**SGD, "lr": 0.01},
    )
    weights = [[w.detach() for m in own for w in m.parameters()] for own in copies]
    for others in weights[1:]:
        assert different(weights[0], others) == []  # replicas end alike
    return tensors_of(*copies[0])


@pytest.mark.parametrize(("stages", "case"), CASES, ids=str)
def test_processes_have_what_the_naive_twin_has(stages, case, done):
    """To the bit; close where four replicas may add up in another order."""
    wanted, compare = twin(case, stages), different if stages == 2 else far
    for left, _, _ in done():
        assert compare(left[stages, case].weights, wanted) == []


@pytest.mark.parametrize(("stages", "case"), RESUMED, ids=str)
def test_replicas_go_on_as_if_they_had_never_stopped(stages, case, done):
    for left, resumed, _ in done():
        whole, later = left[stages, case], resumed[stages, case]
        assert different(whole.weights, later.weights) == []
        assert bits(whole.optimizers) == bits(later.optimizers)
        ((before,), (after,)) = whole.events.values(), later.events.values()
        assert len(after) < len(before)
        assert before[-len(after) :] == after


@pytest.mark.parametrize(("stages", "case"), ALL, ids=str)
def test_one_process_has_what_all_processes_have(stages, case, done):
    alone = trained(with_replicas(stages, case), stages)
    compare = different if stages == 2 else far
    for rank, (left, _, _) in enumerate(done()):
        theirs = left[stages, case]
        assert compare(theirs.weights, alone.weights) == []
        losses = [[epoch["loss"] for epoch in each.history] for each in (alone, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        if stages == 2 and rank % 2 == 0:
            assert bits(theirs.optimizers[rank // 2]) == bits(alone.optimizers[rank // 2])


@pytest.mark.parametrize(("stages", "case"), RESUMED, ids=str)
def test_one_process_continues_what_it_or_all_processes_began(
    stages, case, done, folder, tmp_path
):
    done()
    short = with_replicas(stages, case)
    whole = trained(short, stages, Checkpoints(tmp_path, every=4, keep=9))
    # Processes add up the losses of a batch in another order.
    for begun, near in ((tmp_path, 0), (folder / str(ALL.index((stages, case))), 1e-12)):
        later = trained(short, stages, resume=newest_first(begun)[-1])
        assert different(whole.weights, later.weights) == []
        assert bits(whole.optimizers) == bits(later.optimizers)
        ends = whole.history[0]["loss"], later.history[0]["loss"]
        assert ends[0] == pytest.approx(ends[1], rel=near, abs=0)


@pytest.mark.parametrize("remedy", REMEDIES, ids=str)
def test_a_late_sum_is_a_stale_gradient_for_each_remedy(remedy, done):
    """All replicas have the same samples, so that quarters add up exactly."""
    method = with_staleness(FDG(linearize="stash").with_remedies(remedy), [2, 0])
    wanted, staleness = seen(train(method, [*mlp(1), nn.Identity()], data(mlp, 7)))
    for _, _, corrected in done():
        weights, own = corrected[REMEDIES.index(remedy)]
        assert different(weights, wanted) == []
        assert own == staleness > 1
