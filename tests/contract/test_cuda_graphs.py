"""Recorded and replayed actions give the bits of computed ones, on memory that lasts.

The recorder here needs no GPU: see `contract.tape`. What it shows holds for CUDA graphs but for
CUDA itself, which `contract.test_gpu` tries.
"""

import copy
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from contract.small import Centred, conv, data, different, mlp, sgd, skips, stepped, values_of
from contract.tape import record_on_tapes
from contract.test_late_check import WAYS
from hocket import Trainer, cross_entropy
from hocket.engine.build import build_engine
from hocket.errors import OptionError
from hocket.methods import METHODS, parse_method
from hocket.stage.setup import Setup

BATCHES = 12
LOCKSTEP = [way for way in WAYS if not parse_method(way).free_running]
ACCUMULATED = [f"{name}:accumulate=3" for name in ("adl", "gpipe", "paci") if name in METHODS]


@pytest.fixture(autouse=True)
def recorders(monkeypatch):
    return record_on_tapes(monkeypatch)


def build(method, network=mlp, stages=3, *, replays=True, rate=0.05, **options):
    rate = 1e-3 if "dni" in method else rate
    layers = network(stages, dropout=0.3)
    return Trainer(
        layers,
        method=method,
        optimizer=partial(sgd, lr=rate),
        check_every=10**6,
        cuda_graphs=replays,
        **options,
    )


def losses_of(trainer, batches):
    return [str(trainer.step(*batch)) for batch in batches]


CASES = [
    # On four stages its limit would drop all gradients.
    *[(way, mlp, 3 if "drop-late" in way else 4) for way in LOCKSTEP],
    *[(way, conv, 2) for way in LOCKSTEP if "+" not in way],
    *[(way, mlp, stages) for way in ACCUMULATED for stages in (1, 3)],
    *[(name, conv, 1) for name in ("bp", "fdg", "dgl")],
    ("dgl:reach=1", mlp, 3),
    *[(name, skips, 3) for name in ("bp", "fdg", "fr", "ddg", "gpipe")],
]


@pytest.mark.filterwarnings("ignore:.*(changes nothing|learns from targets)")
@pytest.mark.parametrize(("method", "network", "stages"), CASES)
def test_replays_have_the_bits_of_what_is_computed(method, network, stages, recorders):
    batches = data(network, BATCHES)
    computed = build(method, network, stages, replays=False)
    losses = losses_of(computed, batches)
    replayed = build(method, network, stages)
    assert losses_of(replayed, batches) == losses
    assert not different(values_of(computed), values_of(replayed))
    assert sum(recorder.replays for recorder in recorders) > stages


@pytest.mark.parametrize("method", ["bp", "fdg", "gpipe"])
def test_true_gradients_are_those_of_what_is_computed(method):
    """They are not recorded, also where a batch at the last stage has its place already."""
    told = {False: [], True: []}
    for replays, errors in told.items():
        options = {"gradient_error_every": 1, "on_gradient_error": errors.append}
        losses_of(build(method, replays=replays, **options), data(mlp, BATCHES))
    assert told[True]
    assert told[True] == told[False]


@pytest.mark.parametrize("method", ["bp", "fdg", "fdg:linearize=live", "fr", "dgl", "adl"])
def test_recordings_read_nothing_that_does_not_last(method, recorders):
    trainer = build(method, conv)
    losses_of(trainer, data(conv, BATCHES))
    lasting = set()
    for stage in trainer._session.engine.stages:
        runner, updater = stage.core.runner, stage.core.updater
        slots = [*runner._free, *runner._taken.values()]
        recorded = [each for slot in slots for each in slot.recordings.values()]
        kept = [each.inputs for each in recorded]
        kept += [runner._gradients, updater._do_step._gradients]
        modules = stage.module, stage.signal_network
        kept += [[*module.parameters(), *module.buffers()] for module in modules]
        kept += [updater.optimizer_tensors().values()]
        lasting |= {tensor.untyped_storage().data_ptr() for each in kept for tensor in each}
    read = set().union(*(recorder.outside for recorder in recorders))
    assert read
    assert read <= lasting


@pytest.mark.parametrize("method", ["fdg", "fdg:linearize=live", "fr", "adl", "dgl", "paci"])
def test_a_training_resumes_from_the_state_of_any_tick(method):
    batches = data(conv, BATCHES)
    whole = build(method, conv, replays=False, resumable=True)
    wanted = losses_of(whole, batches)
    replayed = build(method, conv, resumable=True)
    replayed.prepare(batches[0][0])
    for tick in range(BATCHES):
        state = copy.deepcopy(replayed._session.engine.state_dict())
        resumed = build(method, conv, replays=tick % 2 == 1, resumable=True)
        resumed.prepare(batches[0][0])
        resumed._session.engine.load_state_dict(state)
        assert losses_of(resumed, batches[tick:]) == wanted[tick:]
        replayed.step(*batches[tick])


@pytest.mark.parametrize("method", ["bp", "fdg", "fr", "dgl", "adl:accumulate=2"])
def test_what_happens_in_between_changes_no_bit(method, recorders):
    def train(*, replays):
        trainer = build(
            method,
            conv,
            replays=replays,
            scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=9, gamma=0.5),
            scheduler_unit="update",
            warmup_updates=2,
        )
        batches, losses = data(conv, 5 * BATCHES), []
        trainer.prepare(batches[0][0])
        for number, batch in enumerate(batches):
            if number % 13 == 9:
                losses.append(str(trainer.evaluate(data(conv, 2))))
            weight = next(trainer._session.engine.stages[1].module.parameters(), None)
            if number in (20, 35):
                weight.requires_grad_(number == 35)
            if number == 45:
                weight.register_hook(lambda gradient: 2 * gradient)
            count = 2 if number % 11 == 7 else len(batch[0])  # as at the end of an epoch
            losses.append(str(trainer.step(*[each[:count] for each in batch])))
        trainer.finish()
        return losses, trainer

    wanted, computed = train(replays=False)
    losses, replayed = train(replays=True)
    assert losses == wanted
    assert not different(values_of(computed), values_of(replayed))
    assert sum(recorder.replays for recorder in recorders) > BATCHES


@pytest.mark.parametrize("first", [0, 6])
@pytest.mark.parametrize(("lengths", "factors"), [(1, 7), (2, 1)])
def test_no_replay_has_shapes_or_numbers_of_another_batch(lengths, factors, first):
    """From the first change on a batch is computed, and told of if none is captured."""
    batches = [
        (x, (y.repeat(1 + n % lengths), 1.0 + n % factors))
        for n, (x, y) in zip([0] * first + [*range(18)], data(mlp, first + 18), strict=True)
    ]
    train = partial(
        build, "fdg", loss=lambda h, given: given[1] * cross_entropy(h, given[0][:4])
    )
    wanted = losses_of(train(replays=False), batches)
    told = pytest.warns(UserWarning, match="stage 2.*numbers outside of tensors.*cuda_graphs")
    with nullcontext() if first else told:
        assert losses_of(train(), batches) == wanted


class Asks(nn.Module):
    """Asks the device for a number."""

    def forward(self, values):
        return values * (1.0 if values.sum().item() > 0 else 2.0)


def test_a_stage_that_replaces_buffers_computes_each_batch(recorders):
    def network(stages, dropout):
        layers = mlp(stages, dropout=dropout)
        return [nn.Sequential(Centred(), layers[0]), *layers[1:]]

    batches = data(mlp, BATCHES)
    computed = build("fdg", network, replays=False)
    wanted = losses_of(computed, batches)
    replayed = build("fdg", network)
    with pytest.warns(UserWarning, match="stage 0.*other tensors.*cuda_graphs"):
        assert losses_of(replayed, batches) == wanted
    assert not different(values_of(computed), values_of(replayed))
    assert any(recorder.replays for recorder in recorders)


def test_a_forward_that_asks_for_a_number_is_refused():
    def network(stages, dropout):
        layers = mlp(stages, dropout=dropout)
        return [layers[0], nn.Sequential(Asks(), layers[1]), layers[2]]

    with pytest.raises(Exception, match="asks for a number") as caught:
        losses_of(build("fdg", network), data(mlp, BATCHES))
    assert "stage 1" in str(caught.value.__notes__)
    assert "cuda_graphs" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    "options",
    [
        {"streams": True},
        {"compile": True},
        {"precision": "fp16"},
        {"on_nan": "skip"},
        {"check_every": 1},
        {"replicas": 2},
        {"method": "dgl-async"},
        {},  # the device is a CPU
    ],
    ids=str,
)
def test_what_graphs_cannot_have_is_refused(options, monkeypatch):
    monkeypatch.undo()
    given = {"method": "fdg"} | options
    with pytest.raises(OptionError, match="cuda_graphs"):
        stepped(Trainer(mlp(3), optimizer=sgd, cuda_graphs=True, **given), data(mlp, 1))


def test_several_processes_are_refused():
    setup = Setup(method=METHODS["fdg"](), loss=cross_entropy, optimizer=sgd, cuda_graphs=True)
    parts = SimpleNamespace(setup=setup, world=object(), modules=[nn.Linear(1, 1)])
    with pytest.raises(OptionError, match=r"cuda_graphs.*several processes"):
        build_engine(parts)


def test_a_stage_has_as_many_slots_as_batches_in_flight():
    trainer = build("fdg", mlp, 3)
    losses_of(trainer, data(mlp, 2 * BATCHES))
    runners = [stage.core.runner for stage in trainer._session.engine.stages]
    assert [len(runner._free) + len(runner._taken) for runner in runners] == [4, 2, 1]
