"""Every baseline trains the same weights as plain back-propagation."""

from operator import attrgetter

import pytest
import torch
from torch import Tensor

from benchmarks.harness.balance import Balancer
from benchmarks.harness.repetition import TimedSteps
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers import build_baseline
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.fdg_by_hand import FDGByHand
from benchmarks.peers.local_updates import LocalReplicas, LocalUpdates
from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.peers.rows import BUILDERS, find_builder, parse_row
from benchmarks.speed import ROWS
from hocket.errors import CutError, OptionError
from hocket.methods import METHODS, parse_method
from unit.benchmarks.small_workloads import Exact, exact, vectors, weights

STEPS = 2


def trained_plainly(work: Exact) -> dict[str, Tensor]:
    network = work.build_network()
    step = work.loop_step(network, work.batches())
    for _ in range(STEPS):
        step()
    return dict(network.named_parameters())


def trained_by(row: str, work: Exact) -> list[dict[str, Tensor]]:
    """Return the weights of each process."""
    with RowProcesses(
        row, build_baseline(row, work, Balancer(work)), work, timeout_s=30
    ) as world:
        world.query(TimedSteps(STEPS - 1))
        return [
            {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in own.items()}
            for own in world.query(weights)
        ]


@pytest.mark.parametrize(("row", "processes"), [("bp", 1), ("independent", 2)])
def test_processes_of_their_own_train_the_same_bit_by_bit(row: str, processes: int) -> None:
    work = exact()
    plain = trained_plainly(work)
    found = trained_by(row, work)
    assert len(found) == processes
    for own in found:
        assert own.keys() == plain.keys()
        assert all(torch.equal(own[name], plain[name]) for name in plain)


@pytest.mark.parametrize("row", ["ddp", "bp-all"])
def test_shared_batches_train_the_same(row: str) -> None:
    work = exact()
    plain = trained_plainly(work)
    for own in trained_by(row, work):
        assert own.keys() == plain.keys()
        for name in plain:
            torch.testing.assert_close(own[name], plain[name].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("row", ["local-sgd:steps=2", "diloco:steps=2,outer_momentum=0.8"])
def test_local_updates_are_those_of_replicas_in_one_process(row: str) -> None:
    work = exact()
    local = build_baseline(row, work, Balancer(work))
    assert isinstance(local, LocalUpdates)
    replicas = LocalReplicas(work.build_network(), local, work.optimizer)
    for _ in range(4):
        replicas.step(*work.example_batch())
    with RowProcesses(row, local, work, timeout_s=30) as world:
        world.query(TimedSteps(3))  # and one before
        for own, replica in zip(world.query(weights), replicas.networks, strict=True):
            for name, weight in replica.named_parameters():
                found = torch.tensor(own[name], dtype=torch.float64)
                torch.testing.assert_close(found, weight.detach(), rtol=0, atol=1e-12)


def require_same(row: str, work: Exact) -> None:
    plain = trained_plainly(work)
    found = trained_by(row, work)
    together = {name: weight for own in found for name, weight in own.items()}
    assert sum(map(len, found)) == len(together)  # every weight has one home
    assert together.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(together[name], plain[name].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_trains_the_same(schedule: str, microbatches: int) -> None:
    require_same(f"{schedule}:microbatches={microbatches}", exact())


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.parametrize(
    "work",
    [exact(channels_last=False), vectors(), exact(stages=3)],
    ids=["channels first", "vectors", "three processes"],
)
def test_schedules_train_the_same_in_other_worlds(schedule: str, work: Exact) -> None:
    require_same(f"{schedule}:microbatches=6", work)


@pytest.mark.parametrize(
    "work", [exact(), vectors(), exact(stages=3)], ids=["maps", "vectors", "three processes"]
)
def test_fdg_by_hand_trains_the_same_as_hocket_bit_by_bit(work: Exact) -> None:
    peer = build_baseline("fdg-by-hand", work, Balancer(work))
    assert isinstance(peer, FDGByHand)
    method = parse_method("fdg")
    serial = work.build_trainer(method, peer.plan)
    step = work.trainer_step(serial)
    for _ in range(method.delay(0, work.stages) + 1 + STEPS):
        step()
    with RowProcesses("fdg-by-hand", peer, work, timeout_s=30) as world:
        world.query(TimedSteps(STEPS - 1))
        found = world.query(weights)
    together = {name: values for own in found for name, values in own.items()}
    assert together == {n: own.tolist() for n, own in serial.network.state_dict().items()}


def test_samples_are_those_of_all_processes() -> None:
    work = exact()
    for row, samples in (("independent", 24), ("ddp", 12), ("gpipe:microbatches=2", 12)):
        with RowProcesses(
            row, build_baseline(row, work, Balancer(work)), work, timeout_s=30
        ) as world:
            assert world.query(attrgetter("samples")) == [samples, samples]


@pytest.mark.parametrize("row", ROWS)
def test_every_default_row_can_be_read(row: str) -> None:
    name = parse_row(row).name
    assert name in BUILDERS or name in METHODS
    assert callable(find_builder(name))


def test_a_row_says_what_was_chosen() -> None:
    work = exact()
    peer = build_baseline("zbv:microbatches=3", work, Balancer(work))
    about = peer.describe()
    assert about["microbatches"] == 3
    assert len(about["cuts"]) == 3
    assert (peer.processes, peer.threads) == (2, 1)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("gpip", "unknown row 'gpip' \\(did you mean 'gpipe'"),
        ("bp:microbatches=2", "unknown option 'microbatches'; there are: none"),
        ("zbv:schedule=gpipe", "unknown option 'schedule'"),
        ("ddp:static_graph=true", "unknown option 'static_graph'; there are: none"),
        ("local-sgd:outer_lr=0.5", "unknown option 'outer_lr'"),
        ("local-sgd:steps=two", "steps is 'two'; wanted"),
        ("local-sgd:steps=0", "steps is 0; use a number of at least 1"),
        ("diloco:outer_lr=0.0", "outer_lr is 0.0; use a number above 0"),
        ("diloco:outer_momentum=1.0", r"outer_momentum is 1.0; use a number in \[0, 1\)"),
        ("1f1b:microbatches=5", "a batch of 12 has no 5 equal parts for micro-batches"),
        (
            "ddp+predict",
            r"'ddp' is no method .* in the row 'ddp\+predict'; leave out '\+predict'",
        ),
        ("fdg+predcit", "did you mean 'predict'"),
        ("1f1b:microbatches=0", "a batch of 12 has no 0 equal parts for micro-batches"),
    ],
)
def test_what_is_no_row_is_refused(row: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        build_baseline(row, exact(), Balancer(exact()))


@pytest.mark.parametrize("row", ["ddp", "local-sgd", "diloco"])
def test_a_batch_that_cannot_be_shared_is_refused(row: str) -> None:
    with pytest.raises(OptionError, match="no 5 equal parts for processes; choose a batch"):
        build_baseline(row, exact(stages=5), Balancer(exact(stages=5)))


def test_fdg_by_hand_needs_two_stages() -> None:
    work = exact(stages=1)
    with pytest.raises(OptionError, match="no delay with one stage; use 2 or more stages"):
        build_baseline("fdg-by-hand", work, Balancer(work))


def test_more_stages_than_layers_are_refused() -> None:
    work = Workload(
        network="resnet8", shape=(3, 8, 8), batch=4, stages=3, threads=1, channels_last=True
    )
    with pytest.raises(CutError, match="resnet8 into 6 stages: it has 5 layers; ask for fewer"):
        build_baseline("zbv:microbatches=2", work, Balancer(work))


def test_a_row_may_name_its_cuts() -> None:
    work = exact()
    for row, cuts in (
        ("fdg:cut=conv3", ("conv3",)),
        ('dgl:cut=["conv4"]', ("conv4",)),
    ):
        peer = build_baseline(row, work, Balancer(work))
        assert isinstance(peer, Decoupled)
        assert peer.plan.cuts == cuts
    with pytest.raises(OptionError, match="is cut at 2 places for 2 stages; name the first"):
        build_baseline('fdg:cut=["conv1","conv3"]', work, Balancer(work))


@pytest.mark.parametrize(
    "row",
    [
        "fdg:checksum=false",
        "fdg:cut=conv3",
        "fdg:extra_delay=1,linearize=live",
        "adl:accumulate=2",
        "paci:accumulate=2,extra_delay=1+predict",
        "ddg",
        "dgl",
    ],
)
def test_a_method_on_processes_trains_what_it_trains_in_one(row: str) -> None:
    work = exact()
    balance = Balancer(work)
    peer = build_baseline(row, work, balance)
    assert isinstance(peer, Decoupled)
    serial = work.build_trainer(peer.method, peer.plan)
    for _ in range(work.warmup_steps(peer.method) + STEPS):
        work.trainer_step(serial)()
    with RowProcesses(row, peer, work, timeout_s=30) as world:
        world.query(TimedSteps(STEPS - 1))
        found = world.query(weights)
    together = {name: values for own in found for name, values in own.items()}
    assert sum(map(len, found)) == len(together)  # every weight has one home
    assert together == {n: own.tolist() for n, own in serial.network.state_dict().items()}


def test_a_method_s_own_options_and_slack_are_checked() -> None:
    assert parse_row("fdg:shrink=0.5,extra_delay=1").options == {
        "shrink": 0.5,
        "extra_delay": 1,
    }
    with pytest.raises(OptionError, match=r"checksum is 3 in the row .*; use true"):
        parse_row("fdg:checksum=3")
    with pytest.raises(OptionError, match="shrimp"):
        parse_row("fdg:shrimp=1")
    with pytest.raises(OptionError, match="no delay that could be extended"):
        parse_row("fr:forward_delay=0,backward_delay=0,extra_delay=1")
