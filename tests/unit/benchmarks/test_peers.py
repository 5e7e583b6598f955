"""Every baseline trains the same weights as plain back-propagation."""

from operator import attrgetter

import pytest
import torch

from benchmarks.harness.balance import Balancer
from benchmarks.harness.repetition import TimedSteps
from benchmarks.harness.workers import RowProcesses
from benchmarks.harness.workload import Workload
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.pipeline import SCHEDULES
from benchmarks.peers.row import Row
from benchmarks.peers.rows import build_baseline, replica_options
from hocket.errors import CutError, OptionError
from hocket.methods import BP, parse_method
from hocket.partition import Plan
from unit.benchmarks.small_workloads import exact, vectors, weights

pytestmark = pytest.mark.usefixtures("row_server")
STEPS = 2


def name_of(value):
    """Part of a test's id: texts, and the classes and stages of workloads."""
    return (
        f"{type(value).__name__} {value.stages}" if isinstance(value, Workload) else str(value)
    )


def trained_plainly(work):
    network = work.build_network()
    step = work.loop_step(network, work.batches())
    for _ in range(STEPS):
        step()
    return dict(network.named_parameters())


def trained_by(row, work, samples=12):
    """Return the weights of each process; samples are those of all processes together."""
    with RowProcesses(
        row, build_baseline(row, work, Balancer(work)), work, timeout_s=30
    ) as world:
        assert set(world.query(attrgetter("samples"))) == {samples}
        world.query(TimedSteps(STEPS - 1))
        return [
            {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in own.items()}
            for own in world.query(weights)
        ]


@pytest.mark.parametrize(
    ("row", "processes", "tolerance"),
    [("bp", 1, 0.0), ("independent", 2, 0.0), ("ddp", 2, 1e-12), ("bp-all", 1, 1e-12)],
)
def test_processes_train_what_a_plain_loop_does(row, processes, tolerance):
    """Bit-equal where no batch is shared."""
    work = exact()
    samples = 24 if row == "independent" else 12
    plain, found = trained_plainly(work), trained_by(row, work, samples)
    assert len(found) == processes
    for own in found:
        assert own.keys() == plain.keys()
        for name in plain:
            wanted = plain[name].detach()
            torch.testing.assert_close(own[name], wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("row", ["diloco:every=5", "pipe-sgd"])
def test_replicas_of_processes_train_as_those_of_one_process(row):
    """To the bit, after three steps to warm up and two more, where replicas meet."""
    work = exact()
    found = trained_by(row, work)
    trainer = work.build_trainer(BP(), Plan(()), replicas=2, **replica_options(Row.parse(row)))
    step = work.trainer_step(trainer)
    for _ in range(work.warmup_steps(BP()) + STEPS):
        step()
    wanted = trainer.network.state_dict()
    for own in found:
        assert {name for name in wanted if not torch.equal(own[name], wanted[name])} == set()


@pytest.mark.parametrize(
    ("schedule", "microbatches", "work"),
    [
        *((name, 4, exact()) for name in SCHEDULES),
        *((name, 2, exact()) for name in ("gpipe", "zbv")),
        *((name, 6, exact(channels_last=False)) for name in ("1f1b", "zbv")),
        *((name, 6, vectors()) for name in ("1f1b", "zbv")),
        *((name, 6, exact(stages=3)) for name in ("1f1b", "zbv")),
    ],
    ids=name_of,
)
def test_every_schedule_trains_the_same(schedule, microbatches, work):
    plain = trained_plainly(work)
    found = trained_by(f"{schedule}:microbatches={microbatches}", work)
    together = {name: weight for own in found for name, weight in own.items()}
    assert sum(map(len, found)) == len(together)  # every weight has one home
    assert together.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(together[name], plain[name].detach(), rtol=0, atol=1e-12)


def test_a_row_says_what_was_chosen_and_may_name_its_cuts():
    work = exact()
    peer = build_baseline("zbv:microbatches=3", work, Balancer(work))
    about = peer.describe()
    assert about["microbatches"] == 3
    assert len(about["cuts"]) == 3
    assert (peer.processes, peer.threads) == (2, 1)
    for row, cuts in (("fdg:cut=conv3", ("conv3",)), ('dgl:cut=["conv4"]', ("conv4",))):
        peer = build_baseline(row, work, Balancer(work))
        assert isinstance(peer, Decoupled)
        assert peer.plan.cuts == cuts


LAYERS = Workload(
    network="resnet8", shape=(3, 8, 8), batch=4, stages=3, threads=1, channels_last=True
)


@pytest.mark.parametrize(
    ("row", "work", "match"),
    [
        ("gpip", exact(), "unknown row 'gpip' .did you mean 'gpipe'"),
        ("bp:microbatches=2", exact(), "unknown option 'microbatches'; there are: none"),
        ("zbv:schedule=gpipe", exact(), "unknown option 'schedule'"),
        ("local-sgd:outer_lr=0.5", exact(), "unknown option 'outer_lr'"),
        ("local-sgd:every=two", exact(), "every is 'two'; wanted"),
        ("local-sgd:every=0", exact(), "every is 0; use a number of at least 1"),
        ("pipe-sgd:delay=0", exact(), "pipe-sgd:delay=0 has another option than delay"),
        ("diloco:outer_lr=0.0", exact(), "outer_lr is 0.0; use a number above 0"),
        ("diloco:outer_momentum=1.0", exact(), r"outer_momentum is 1.0; .* \[0, 1\)"),
        ("1f1b:microbatches=5", exact(), "a batch of 12 has no 5 equal parts"),
        ("1f1b:microbatches=0", exact(), "a batch of 12 has no 0 equal parts"),
        ("ddp+predict", exact(), r"'ddp' is no method .*; leave out '\+predict'"),
        ("fdg+predcit", exact(), "did you mean 'predict'"),
        ("fdg:checksum=3", exact(), "checksum is 3 in the row .*; use true"),
        ("fdg:shrimp=1", exact(), "shrimp"),
        ("fr:forward_delay=0,backward_delay=0,extra_delay=1", exact(), "no delay that could"),
        ('fdg:cut=["conv1","conv3"]', exact(), "is cut at 2 places for 2 stages"),
        ("ddp", exact(stages=5), "no 5 equal parts for processes"),
        ("local-sgd", exact(stages=5), "no 5 equal parts for replicas"),
        ("diloco", exact(stages=5), "no 5 equal parts for replicas"),
        ("fdg-by-hand", exact(stages=1), "no delay with one stage"),
        ("zbv:microbatches=2", LAYERS, "resnet8 into 6 stages: it has 5 layers"),
    ],
    ids=name_of,
)
def test_what_is_no_row_is_refused(row, work, match):
    with pytest.raises((OptionError, CutError), match=match):
        build_baseline(row, work, Balancer(work))


@pytest.mark.parametrize(
    ("row", "work"),
    [
        ("fdg-by-hand", exact()),
        ("fdg-by-hand", vectors()),
        ("fdg-by-hand", exact(stages=3)),
        ("fdg:checksum=false", exact()),
        ("fdg:cut=conv3", exact()),
        ("fdg:extra_delay=1,linearize=live", exact()),
        ("adl:accumulate=2", exact()),
        ("paci:accumulate=2,extra_delay=1+predict", exact()),
    ],
    ids=name_of,
)
def test_a_method_on_processes_trains_what_it_trains_in_one(row, work):
    """Bit-equal; also FDG by hand."""
    peer = build_baseline(row, work, Balancer(work))
    method = peer.method if isinstance(peer, Decoupled) else parse_method("fdg")
    serial = work.build_trainer(method, peer.plan)
    by_hand = method.delay(0, work.stages) + 1
    warmup = work.warmup_steps(method) if isinstance(peer, Decoupled) else by_hand
    for _ in range(warmup + STEPS):
        work.trainer_step(serial)()
    with RowProcesses(row, peer, work, timeout_s=30) as world:
        world.query(TimedSteps(STEPS - 1))
        found = world.query(weights)
    together = {name: values for own in found for name, values in own.items()}
    assert sum(map(len, found)) == len(together)  # every weight has one home
    assert together == {n: own.tolist() for n, own in serial.network.state_dict().items()}
