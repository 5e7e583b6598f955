"""Stages that run freely: at equal rates nothing changes, at others everything is counted."""

import copy
from collections import Counter
from functools import partial

import pytest
from torch.optim.lr_scheduler import ExponentialLR

from contract.small import (
    SGD,
    WatchedBatches,
    conv,
    data,
    different,
    far,
    mlp,
    sgd,
    stepped,
    tensors_of,
    train,
)
from hocket import Checkpoints, Trainer, cross_entropy
from hocket.checkpoint.directory import newest_first
from hocket.codecs import VQ
from hocket.engine.async_simulated import TurnOrder
from hocket.errors import OptionError
from hocket.methods import DGL, DGLAsync
from reference import dgl_async

networks = pytest.mark.parametrize(("net", "stages"), [(mlp, 2), (mlp, 4), (conv, 3)])
RATES = {
    "a slow end": (1.0, 1.0, 0.4),
    "a slow beginning": (0.4, 1.0, 1.0),
    "a slow middle": (1.0, 0.3, 1.0),
    "all different": (1.0, 1.7, 0.6),
}
every_pace = pytest.mark.parametrize("rates", RATES.values(), ids=RATES.keys())
LIMITED = DGLAsync(buffer=3, reuse=2)


run = partial(train, epochs=2)


# (j) At equal rates a stage finds what the one before it has just sent.


@networks
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("buffer", [1, 4])
def test_at_equal_rates_it_is_pipelined_dgl(accumulate, buffer, stages, net):
    methods = DGL(accumulate=accumulate), DGLAsync(accumulate=accumulate, buffer=buffer)
    ends = [run(m, net(stages, dropout=0.3), data(net, 8, last=3)).state for m in methods]
    assert not different(*ends)


def test_at_equal_rates_it_is_pipelined_dgl_with_codebooks():
    codec = VQ(groups=1, codes=3, every=2, decay=0.7)
    ends = [run(m, conv(3), data(conv, 6), codec=codec).state for m in (DGL(), DGLAsync())]
    assert not different(*ends)


# The algorithm as the paper has it.


@every_pace
@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("net", [mlp, conv])
def test_it_is_the_papers_algorithm(rates, buffer, net):
    batches, modules = data(net, 6, last=2), net(3)
    theirs = copy.deepcopy(modules)
    trainer = Trainer(
        modules, method=DGLAsync(head="mlp", buffer=buffer), optimizer=sgd, stage_speeds=rates
    )
    trainer.prepare(batches[0][0])
    heads = copy.deepcopy([stage.signal_network for stage in trainer.stages[:-1]])
    stepped(trainer, batches * 3)
    clock, turns = TurnOrder(rates), []
    # As many as there are up to the turn of the first stage for which no batch is left.
    while turns.count(0) < len(batches * 3) or clock.upcoming:
        turns.append(clock.next())
    dgl_async.train(
        theirs, batches * 3, turns=turns, buffer=buffer, loss=cross_entropy, heads=heads, **SGD
    )
    our_heads = [stage.signal_network for stage in trainer.stages[:-1]]
    assert not far(tensors_of(*modules, *our_heads), tensors_of(*theirs, *heads))


# (l) Every batch is used, or dropped, or waits; all of it is counted.


@every_pace
@pytest.mark.parametrize("method", [DGLAsync(buffer=1), DGLAsync(buffer=3), LIMITED], ids=str)
def test_every_batch_is_used_or_counted_as_dropped(method, rates):
    trained = run(method, mlp(3), data(mlp, 6), stage_speeds=rates)
    for k in (1, 2):
        uses = trained.trainer.stages[k].receive_stats
        buffer = trained.trainer.engine._stages[k]._draw._buffer
        assert uses.arrived == len(trained.of("F", k - 1))
        assert uses.drawn == len(trained.of("F", k))
        assert uses.drawn - uses.reused + uses.dropped + buffer.waiting == uses.arrived
        assert len(trained.trainer.stages[k].in_flight) == 0
    assert trained.trainer.stages[0].receive_stats is None


# Each stage counts for itself.


@every_pace
def test_every_stage_learns_for_as_many_epochs_of_its_own(rates):
    trained = run(DGLAsync(), mlp(3), data(mlp, 5), stage_speeds=rates, epochs=3)
    for k in range(3):
        learned = trained.of("B", k)
        assert [e.action.batch for e in learned] == list(range(15))
        assert [e.report.epoch for e in learned] == [b // 5 for b in range(15)]
        assert [e.action.batch for e in trained.of("U", k)] == list(range(15))
    fastest, slowest = max(rates), min(rates)
    assert len(trained.of("F", rates.index(fastest))) > 15
    assert len(trained.of("F", rates.index(slowest))) <= 15 + 5


def test_a_stage_that_has_learned_enough_forwards_in_evaluation_mode():
    modes = []
    modules = conv(2)
    modules[0][1].register_forward_pre_hook(lambda layer, _: modes.append(layer.training))
    ends = []

    def watch(event, stage):
        if stage.index == 0 and event.action.batch == 9 and event.action.kind == "U":
            ends.append([v.clone() for v in stage.module.state_dict().values()])

    trainer = Trainer(
        modules, method=DGLAsync(), optimizer=sgd, stage_speeds=(1, 0.5), watchers=[watch]
    )
    trainer.fit(data(conv, 5), epochs=2, progress=False)
    # The sample that built the stages, twice, then ten batches to learn from.
    assert modes[2:] == [True] * 10 + [False] * 10
    assert not different(ends[0], modules[0].state_dict().values())


def watched(name, **options):
    """Return what reports of updates name, a list for each of two stages, and their trainer."""
    told = [[], []]

    def watch(event, stage):
        if event.action.kind == "U":
            told[stage.index].append(getattr(event.report, name))

    given = {"optimizer": sgd, **options}
    return told, Trainer(mlp(2), method=DGLAsync(), watchers=[watch], **given)


PACES = [(1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (1.0, 1.7)]


@pytest.mark.parametrize("speeds", PACES)
@pytest.mark.parametrize("length", [2, 4, 7])
def test_a_second_training_begins_with_a_new_epoch_of_every_stage(length, speeds, tmp_path):
    """Whatever the length of the epochs before, and also from a checkpoint in its midst."""
    options = {
        "optimizer": partial(sgd, lr=1.0),
        "scheduler": lambda optimizer: ExponentialLR(optimizer, 0.5),
        "stage_speeds": speeds,
        "resumable": True,
    }
    rates, first = watched("lr", **options)
    first.fit(data(mlp, 4), epochs=2, progress=False)
    assert rates == [[1.0] * 4 + [0.5] * 4] * 2
    batches = data(mlp, length)
    first.fit(batches, epochs=2, progress=False, checkpoints=Checkpoints(tmp_path, 1, 10**6))
    whole = [0.25] * length + [0.125] * length
    assert [own[8:] for own in rates] == [whole] * 2
    for place in newest_first(tmp_path)[::2]:
        rates, second = watched("lr", **options)
        second.resume(place)
        second.fit(batches, epochs=2, progress=False)
        for own in rates:
            assert own == whole[len(whole) - len(own) :]
        assert not different(*map(tensors_of, (second.network, first.network)))


def test_a_training_after_one_that_was_stopped_begins_with_a_new_epoch():
    def stop(reading, number):
        if (reading, number) == (1, 2):
            raise KeyboardInterrupt

    epochs, trainer = watched("epoch")
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(WatchedBatches(data(mlp, 4), stop), epochs=3, progress=False)
    assert epochs == [[0] * 4 + [1] * 2] * 2
    trainer.fit(data(mlp, 4), epochs=2, progress=False)
    assert epochs == [[0] * 4 + [1] * 2 + [1] * 4 + [2] * 4] * 2


def test_a_training_after_a_loop_of_the_users_begins_with_the_next_epoch():
    epochs, trainer = watched("epoch", stage_speeds=(1, 0.5))
    for _ in range(2):
        stepped(trainer, data(mlp, 4))
        trainer.end_epoch()
    trainer.fit(data(mlp, 3), epochs=2, progress=False)
    assert epochs == [
        [0] * 4 + [1] * 4 + [2] * 3 + [3] * 3,
        [0] * 2 + [1] * 2 + [2] * 3 + [3] * 3,
    ]


def test_a_loop_of_the_users_after_a_training_trains():
    epochs, trainer = watched("epoch", stage_speeds=(1, 0.5))
    trainer.fit(data(mlp, 4), epochs=1, progress=False)
    before = [value.clone() for value in trainer.state_dict().values()]
    stepped(trainer, data(mlp, 4))
    assert [own[4:] for own in epochs] == [[trainer.epoch] * 4, [trainer.epoch] * 2]
    assert far(before, trainer.state_dict().values())


def test_the_history_has_a_pass_over_the_data_for_each_of_the_slowest_stages():
    trained = run(DGLAsync(), mlp(2), data(mlp, 4), stage_speeds=(1, 0.5), epochs=2)
    assert [epoch.number for epoch in trained.history] == [0, 1, 2, 3]
    whole = [e.report.loss for e in trained.of("B", 1)]
    assert [epoch.loss for epoch in trained.history] == pytest.approx(
        [sum(whole[n : n + 2]) / 2 for n in (0, 2, 4, 6)]
    )


# What cannot be.


def test_data_say_how_long_an_epoch_is():
    class Unsized:
        def __iter__(self):
            return iter(data(mlp, 4))

    class Longer(Unsized):
        def __len__(self):
            return 3

    with pytest.raises(OptionError, match="data do not say how many batches they have"):
        run(DGLAsync(), mlp(2), Unsized())
    with pytest.warns(UserWarning, match=r"have 4 batches in an epoch, and their len\(\) is 3"):
        run(DGLAsync(), mlp(2), Longer())


# Turns fall to stages by their rates, the same ones at every run.


def turns(speeds, count):
    clock = TurnOrder(speeds)
    return [clock.next() for _ in range(count)]


def test_turns_are_in_proportion_to_rates_however_long():
    count = Counter(turns((1.0, 0.5, 2.0), 7000))
    assert [count[stage] for stage in range(3)] == [2000, 1000, 4000]
    for rate in (1.0, 0.1, 3.0):
        assert turns((rate,) * 3, 3000) == [0, 1, 2] * 1000
    assert turns((10.0, 1.0), 1100) == [*[0] * 10, 1] * 100


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan"), "2", None, True])
def test_a_stage_must_have_a_pace(rate):
    with pytest.raises(OptionError, match=f"the speed of stage 1 is {rate!r}; use a number"):
        Trainer(mlp(2), method="dgl-async", optimizer=sgd, stage_speeds=(1.0, rate))
