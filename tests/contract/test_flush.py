"""Pipelines that are flushed: back-propagation to the bit, with more batches in flight.

GPipe and 1F1B differ in the batches that a stage holds, and in nothing that they compute.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from contract.small import (
    LOCKSTEP,
    STAGES,
    Centred,
    Recurrent,
    back_propagate,
    conv,
    data,
    different,
    mlp,
    sgd,
    table,
    train,
    values_of,
)
from hocket import Checkpoints, Trainer
from hocket.checkpoint.directory import newest_first
from hocket.errors import OptionError
from hocket.methods import BP, DGL, METHODS, GPipe, OneFOneB, build_method
from hocket.methods.simulated.delays import with_extra_delay
from hocket_lab.planner.simulate import StageTimes, simulate, tick_s
from hocket_lab.planner.window import bound_s, least_extra_delay

FLUSHED = [name for name, build in METHODS.items() if build().flushes]
every_flushed = pytest.mark.parametrize("name", FLUSHED)


@every_flushed
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("accumulate", [1, 2, 3, 5])
def test_a_flushed_pipeline_is_back_propagation(accumulate, stages, name):
    """Bit-equal: two epochs of 7 batches, so that some groups lie over the end of an epoch."""
    method, batches = build_method(name, accumulate=accumulate), data(conv, 7, last=3)
    plain = back_propagate(conv(stages), batches, accumulate=accumulate, epochs=2)
    assert not different(train(method, conv(stages), batches, epochs=2).state, plain)


@every_flushed
def test_a_second_forward_begins_with_the_buffers_of_the_first(name, tmp_path):
    """Bit-equal to back-propagation, also resumed within a group, for power iterations too."""

    def net():
        stages = mlp(3)
        for stage in stages:
            nn.utils.parametrizations.spectral_norm(
                next(layer for layer in stage.modules() if isinstance(layer, nn.Linear))
            )
            stage.append(Centred())
        return stages

    batches = data(mlp, 7)
    plain = train(BP(accumulate=4), net(), batches, epochs=2).state
    method = build_method(name, accumulate=4, recompute=True)
    assert not different(train(method, net(), batches, epochs=2).state, plain)
    trainer = Trainer(net(), method=method, optimizer=sgd, resumable=True)
    kept = Checkpoints(tmp_path, every=1, keep=99)
    trainer.fit(batches, epochs=2, progress=False, checkpoints=kept)
    for place in newest_first(tmp_path)[::3]:  # every place in a group of four, over epochs
        again = Trainer(net(), method=method, optimizer=sgd, resumable=True)
        again.resume(place)
        again.fit(batches, epochs=2, progress=False)
        assert not different(again.state_dict().values(), trainer.state_dict().values()), place


@every_flushed
@pytest.mark.parametrize(
    "options",
    [
        {"epoch_end": "drain"},
        {"reduce": "sum"},
        {"accumulate": 3},
        {"accumulate": 6, "epoch_end": "drain"},
    ],
    ids=["drain", "sum", "three", "six-drain"],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_drained_epochs_and_dropout_are_as_without_a_pipeline(name, options, recompute):
    """Bit-equal, groups that an epoch's end cuts short included; and every event's report."""
    batches = data(conv, 7, last=3)
    flushed = build_method(name, recompute=recompute, **options)
    methods = flushed, BP(**({"accumulate": 4} | options))
    trained = [train(method, conv(3, dropout=0.3), batches, epochs=2) for method in methods]
    assert not different(trained[0].state, trained[1].state)
    for stage in range(3):
        updates = [[e.report for e in each.of("U", stage)] for each in trained]
        assert updates[0] == updates[1]
        backwards = [[e.report for e in each.of("B", stage)] for each in trained]
        ours, plain = ([(r.epoch, r.version, r.staleness) for r in each] for each in backwards)
        assert ours == plain
        assert {staleness for _, _, staleness in ours} == {0}


@every_flushed
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("accumulate", [1, 2, 4, 7])
def test_the_bubble_is_that_of_the_papers(name, stages, accumulate):
    """As in arXiv 1811.06965: (K-1) / (M+K-1) of the time, on equal stages."""
    method = build_method(name, accumulate=accumulate)
    times = [StageTimes(1.0, 2.0, 0.0, 0.0)] * stages
    seconds = tick_s(method, times)
    assert seconds >= bound_s(method, times) == 3
    assert not any(least_extra_delay(method, times))
    assert seconds == pytest.approx(3 * (accumulate + stages - 1) / accumulate)
    group = simulate(method, times, accumulate)
    assert max(span.end_s for span in group.spans) == 3 * (accumulate + stages - 1)


@pytest.mark.parametrize("linearize", ["stash", "recompute"])
def test_stashing_copies_no_weight_where_none_changes(linearize):
    """Layers that late gradients are refused for are compatible: an LSTM, say."""

    def network() -> list[nn.Module]:
        torch.manual_seed(0)
        return [
            Recurrent(nn.LSTM).double(),
            nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)).double(),
        ]

    method = replace(OneFOneB(accumulate=3), linearize=linearize)
    plain = back_propagate(network(), data(mlp, 7), accumulate=3)
    assert not different(train(method, network(), data(mlp, 7)).state, plain)


@every_flushed
@pytest.mark.parametrize("bad", [2, 3])
def test_a_batch_with_nan_is_left_out_of_its_group(name, bad):
    """As from back-propagation's, which takes the mean over the others."""
    batches = data(mlp, 9)
    batches[bad][0][0, 0] = float("nan")
    methods = build_method(name, accumulate=4), BP(accumulate=4)
    trained = [train(method, mlp(3), batches, on_nan="skip").trainer for method in methods]
    assert not different(*map(values_of, trained))


@every_flushed
def test_faults_and_checkpoints_are_due_though_a_batch_takes_several_ticks(name, tmp_path):
    """A multiple of the interval that lies within a flush counts at the end of the flush."""
    method, modules = build_method(name, accumulate=2), mlp(3)
    ends = []
    trainer = Trainer(modules, method=method, optimizer=sgd, check_every=3, resumable=True)
    trainer.prepare(data(mlp, 1)[0][0])
    with trainer.saving(Checkpoints(tmp_path, every=3, keep=100)) as save:
        for inputs, targets in data(mlp, 8):
            trainer.step(inputs, targets)
            ends.append(trainer.engine.tick_count)
            save()
    before = [0, *ends]
    due = [end for end, start in zip(ends, before, strict=False) if end // 3 > start // 3]
    saved = sorted(int(folder.name.split("-")[1]) for folder in newest_first(tmp_path))
    assert saved == due


@pytest.mark.parametrize("name", LOCKSTEP)
def test_step_returns_the_loss_of_the_last_batch_that_left(name):
    method, last = METHODS[name](), []
    method = replace(method, accumulate=2) if method.flushes else method

    def watch(event, stage):
        if event.action.kind == "B" and stage.index == 1:
            last.append(event.report.loss)

    trainer = Trainer(mlp(2), method=method, optimizer=sgd, watchers=[watch])
    for number, batch in enumerate(data(mlp, 4)):
        seen = len(last)
        loss = trainer.step(*batch)
        assert loss == (last[-1] if len(last) > seen else None)
        assert len(last) == number + 1 or name == "gpipe" or not method.flushes
    seen = len(last)
    rest = [e for e in trainer.finish() if e.action.kind == "B" and e.action.stage == 1]
    assert [event.report.loss for event in rest] == last[seen:]
    assert len(last) == 4


# What contradicts a flush is refused.


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"linearize": "live"}, "linearize='live' and hold='newest': no weight changes"),
        ({"hold": "double"}, "linearize='stash' and hold='double': no weight changes"),
        ({"signal": DGL().signal}, "waits for gradients from the next stage, and the signal"),
        ({"flush": "all-forward", "order": "backward-first"}, "a backward would begin before"),
        ({"flush": "always"}, "flush is 'always'; wanted 'never' or 'alternate' or 'all-f"),
    ],
    ids=["live", "hold", "local", "order", "word"],
)
def test_what_contradicts_a_flush_is_refused(choices, told):
    with pytest.raises(OptionError, match=told):
        table(**{"flush": "alternate"} | choices)


def test_packets_may_take_longer_within_a_group_that_alternates():
    """As many forwards more; where all forwards come first there is nothing to do meanwhile."""
    later = with_extra_delay(OneFOneB(accumulate=4), 1)
    assert [later.memory(k, 3).graphs for k in range(3)] == [4, 3, 1]
    states = [train(method, mlp(3), data(mlp, 9)).state for method in (later, BP(accumulate=4))]
    assert not different(*states)
    with pytest.raises(OptionError, match=r"no stage has other work .* at 0, or use 1f1b"):
        with_extra_delay(GPipe(), 1)
