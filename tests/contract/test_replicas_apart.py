"""Replicas that are late or meet rarely: processes equal a naive twin, and resume exactly."""

from functools import cache

import pytest
from torch import Tensor, nn

from contract.late_replicas import (
    ALL,
    CASES,
    PROCESSES,
    REMEDIES,
    RESUMED,
    resumed_here,
    seen,
    train_all,
    train_here,
)
from contract.processes import in_processes
from contract.small import SGD, bits, data, different, far, mlp, tensors_of, train
from contract.worlds import NETS, Case, Left
from hocket import cross_entropy
from hocket.distributed.replicas.meet import as_meet
from hocket.methods import FDG, with_staleness
from reference import replicas as naive

pytestmark = pytest.mark.xdist_group("late replicas")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return [tmp_path_factory.mktemp(who) for who in ("apart", "alone")]


@pytest.fixture(scope="module")
def alone(folders):
    return cache(lambda: train_here(folders[1]))


@pytest.fixture(scope="module")
def done(folders, alone):
    def train():
        alone()
        return in_processes(train_all, *folders, processes=PROCESSES)

    return cache(train)


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


def require_alike(whole: Left, later: Left) -> None:
    assert different(whole.weights, later.weights) == []
    assert bits(whole.optimizers) == bits(later.optimizers)
    assert whole.history == later.history


@pytest.mark.parametrize(("stages", "case"), CASES, ids=str)
def test_processes_have_what_the_naive_twin_has(stages, case, done):
    """To the bit; close where four replicas may add up in another order."""
    wanted, compare = twin(case, stages), different if stages == 2 else far
    for left, _, _ in done():
        assert compare(left[stages, case].weights, wanted) == []


@pytest.mark.parametrize(("stages", "case"), RESUMED, ids=str)
def test_processes_continue_what_they_or_one_process_began(stages, case, done):
    for left, resumed, _ in done():
        whole = left[stages, case]
        for later in (each[stages, case] for each in resumed):
            require_alike(whole, later)
            ((before,), (after,)) = whole.events.values(), later.events.values()
            assert len(after) < len(before)
            assert before[-len(after) :] == after


@pytest.mark.parametrize(("stages", "case"), ALL, ids=str)
def test_one_process_has_what_all_processes_have(stages, case, done, alone):
    """Also if all look at the weights between epochs, and the main one draws numbers there."""
    ours = alone()[stages, case]
    for rank, (left, _, _) in enumerate(done()):
        theirs = left[stages, case]
        if stages == 1:
            assert far(theirs.weights, ours.weights) == []
            losses = theirs.history[0]["loss"], ours.history[0]["loss"]
            assert losses[0] == pytest.approx(losses[1], rel=1e-12)
            continue
        assert different(theirs.weights, ours.weights) == []
        assert theirs.history == ours.history
        if rank % 2 == 0:
            assert bits(theirs.optimizers[rank // 2]) == bits(ours.optimizers[rank // 2])


@pytest.mark.parametrize(("stages", "case"), RESUMED, ids=str)
def test_one_process_continues_what_it_or_all_processes_began(
    stages, case, done, alone, folders
):
    done()
    for folder in folders:
        require_alike(alone()[stages, case], resumed_here(stages, case, folder))


@pytest.mark.parametrize("remedy", REMEDIES, ids=str)
def test_a_late_sum_is_a_stale_gradient_for_each_remedy(remedy, done):
    """All replicas have the same samples, so that quarters add up exactly."""
    method = with_staleness(FDG(linearize="stash").with_remedies(remedy), [2, 0])
    wanted, staleness = seen(train(method, [*mlp(1), nn.Identity()], data(mlp, 7)))
    for _, _, corrected in done():
        weights, own = corrected[REMEDIES.index(remedy)]
        assert different(weights, wanted) == []
        assert own == staleness > 1
