"""Rows train on the data, and by the schedule, of a run: they learn what the run learns."""

from functools import partial
from operator import methodcaller

import pytest
import torch

from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import TimedRow
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.rows import build_baseline
from contract.small import bits
from hocket.errors import OptionError
from hocket.runs.build import load_data
from hocket.runs.config import RunConfig
from hocket.runs.train import train
from hocket.signals.losses import cross_entropy
from unit.benchmarks.small_workloads import WholeTraining, weights

pytestmark = pytest.mark.usefixtures("row_server")
UPDATES = 30  # of which the first pass has 23, and the last of them a shorter batch
CONFIG = partial(
    RunConfig,
    network="mlp:hidden=[16,16]",
    data="digits",
    batch_size=64,
    updates=UPDATES,
    optimizer="AdamW:lr=0.01,betas=[0.9,0.99],weight_decay=0.5",
    weight_decay_on="matrices",
    warmup_updates=4,
    scheduler="CosineAnnealingLR:T_max=26",
    scheduler_unit="update",
    clip="0.3",
    seed=3,
)


def work_of(config):
    return RunWorkload.of(config, stages=2, threads=1)


def test_a_plain_loop_does_the_updates_of_a_run_bit_by_bit(tmp_path):
    config = CONFIG(method="bp", stages=1, run_dir=tmp_path / "run")
    train(config)
    wanted = torch.load(tmp_path / "run" / "network.pt", weights_only=True)
    work = work_of(config)
    network = work.build_network()
    step = work.loop_step(network, work.batches())
    for _ in range(UPDATES):
        step()
    assert bits(network.state_dict()) == bits(wanted)


@pytest.mark.parametrize(
    ("row", "method", "accumulate", "updates"),
    [
        ("bp", "bp", 1, UPDATES),
        ("ddp", "bp", 1, 22),  # before the shorter batch, which has no equal parts
        ("fdg:cut=hidden1", "fdg", 1, UPDATES),
        ("adl:accumulate=2,cut=hidden1", "adl:accumulate=2", 2, UPDATES),
    ],
)
def test_full_pipelines_end_at_the_loss_of_the_run(row, method, accumulate, updates, tmp_path):
    config = CONFIG(
        method=method,
        stages=1 if method == "bp" else 2,
        plan="balanced" if method == "bp" else "hidden1",
        batch_size=64 // accumulate,
        updates=updates,
        run_dir=tmp_path / "run",
    )
    *_, epoch = train(config).epochs
    work = work_of(config)
    one = TimedRow(row, build_baseline(row, work, Balancer(work)), work)
    done = work.warmup_steps(one.baseline.method) if isinstance(one.baseline, Decoupled) else 0
    with RowProcesses(row, one.baseline, work) as world:
        *_, loss = world.query(methodcaller("step"))
        assert loss is not None  # the pipeline is full
        world.query(WholeTraining(updates * one.ticks - done - 1))
        states = [
            {name: torch.tensor(values) for name, values in state.items()}
            for state in world.query(weights)
        ]
    whole = {name: own for state in states for name, own in state.items()}
    network = work.build_network().eval()
    network.load_state_dict(whole)
    test = load_data(config).test
    total = sum(cross_entropy(network(x), y).item() * len(y) for x, y in test)
    mean = total / sum(len(y) for _, y in test)
    assert mean == pytest.approx(epoch.evaluation.loss, rel=1e-5)


def test_targets_of_the_batch_are_classes_of_the_data():
    _, targets = work_of(CONFIG(data="synthetic:shape=[64],classes=4")).example_batch()
    assert targets.max() < 4


def test_batches_that_cannot_be_shared_are_left_out():
    batches = work_of(CONFIG(batch_size=100)).batches(multiple=4)  # the last one has 38
    assert [len(next(batches)[0]) for _ in range(30)] == [100] * 30


def test_an_optimizer_that_a_plain_loop_cannot_have_is_refused():
    with pytest.raises(OptionError, match="'Muon' asks for the names of weights"):
        work_of(CONFIG(optimizer="Muon:lr=0.01,weight_decay=0.1"))
