"""Averaged weights: their definition, exact resumption, and other cuts."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from contract.small import bits, conv, data, mlp, sgd
from hocket import Checkpoints, Plan, Trainer
from hocket.callbacks.averaged_weights import AveragedWeights
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.training.callback import Callback
from unit.training.test_resume import trainer_of

BATCHES = data(mlp, 5)
DECAY = 0.75


def fit(trainer, averaged, epochs=2, **options):
    options = {"callbacks": [averaged], "progress": False} | options
    trainer.fit(BATCHES, epochs=epochs, **options)
    return trainer


def averages(trainer, averaged):
    with averaged.in_place(trainer):
        return {name: value.clone() for name, value in trainer.state_dict().items()}


def by_hand(start=0, **options):
    """Averages of the weights after each update, by their names in a network of stages."""
    means, events = {}, []

    def watch(event, stage):
        if event.action.kind == "U":
            events.append(stage.index)
            if events.count(stage.index) > start:
                for name, weight in stage.module.named_parameters():
                    before = means.get(f"{stage.index}.{name}", weight.detach())
                    mean = before.lerp(weight.detach(), 1 - DECAY).clone()
                    means[f"{stage.index}.{name}"] = mean

    trainer_of(watchers=[watch], **options).fit(BATCHES, epochs=2, progress=False)
    return means


@pytest.mark.parametrize("start", [0, 4])
def test_averages_are_those_of_the_weights_after_all_updates(start):
    """Close in float64; the updates that complete batches at the end count as well."""
    averaged = pickle.loads(pickle.dumps(AveragedWeights(DECAY, start=start)))
    trainer = fit(trainer_of(), averaged)
    weights = bits(trainer.state_dict())
    found, wanted = averages(trainer, averaged), by_hand(start)
    for name, mean in wanted.items():
        torch.testing.assert_close(found[name], mean, rtol=1e-12, atol=1e-12)
    assert bits(found) != weights == bits(trainer.state_dict())
    with pytest.raises(KeyError), averaged.in_place(trainer):
        raise KeyError
    assert bits(trainer.state_dict()) == weights


def test_weights_of_16_bits_have_averages_of_32():
    """Others would round the small steps away."""
    averaged, layer = AveragedWeights(0.999), nn.Linear(1, 1, bias=False).bfloat16()
    stage = SimpleNamespace(index=0, updater=SimpleNamespace(version=1), module=layer)
    for value in [1.0, *[2.0] * 1000]:
        nn.init.constant_(layer.weight, value)
        averaged.on_update(None, stage)
    assert averaged.stage_tensors(stage)["weight"].item() == pytest.approx(2 - 0.999**1000)


def test_weights_without_an_average_and_statistics_are_the_present_ones():
    trainer = Trainer(conv(2), method=FDG(), optimizer=sgd)
    late, averaged = AveragedWeights(DECAY, start=100), AveragedWeights(DECAY)
    trainer.fit(data(conv, 3), epochs=1, callbacks=[late, averaged], progress=False)
    present = trainer.state_dict()
    assert bits(averages(trainer, late)) == bits(present)
    found = averages(trainer, averaged)
    same = {name for name, value in found.items() if torch.equal(value, present[name])}
    assert same == {name for name, _ in trainer.network.named_buffers()}


def test_a_new_fit_averages_anew_and_a_stage_without_weights_has_no_averages():
    averaged = AveragedWeights(0.0)
    fit(trainer_of(), averaged)
    other = trainer_of()
    averaged.on_start(other, None)
    other.prepare(BATCHES[0][0])
    assert bits(averages(other, averaged)) == bits(other.state_dict())
    network = nn.Sequential(nn.Flatten(), *mlp(1))
    trainer = fit(trainer_of(network, stages=Plan(("1",))), averaged)
    assert averaged.stage_tensors(trainer.stages[0]) == {}
    assert averaged.stage_tensors(trainer.stages[1])


def test_a_resumed_training_has_the_same_averages(tmp_path):
    alone = AveragedWeights(DECAY)
    checkpoints = Checkpoints(tmp_path, every=3, keep=9)
    wanted = averages(fit(trainer_of(), alone, checkpoints=checkpoints), alone)
    averaged = AveragedWeights(DECAY)
    trainer = trainer_of(resume=sorted(tmp_path.iterdir())[0])
    assert bits(averages(fit(trainer, averaged), averaged)) == bits(wanted)


def test_a_checkpoint_keeps_averages_of_a_training_that_goes_on_without_them(tmp_path):
    """Bit-equal, as of then."""
    first, before, after = trainer_of(), AveragedWeights(DECAY), AveragedWeights()
    fit(first, before, 1, checkpoints=Checkpoints(tmp_path))
    wanted = averages(first, before)
    for epochs, callbacks in ((2, []), (2, [after])):
        trainer = trainer_of(resume=tmp_path)
        fit(trainer, None, epochs, callbacks=callbacks, checkpoints=Checkpoints(tmp_path))
    assert bits(averages(trainer, after)) == bits(wanted)


def test_tensors_that_no_other_cut_would_find_are_refused(tmp_path):
    class Keeping(Callback):
        def stage_tensors(self, stage):
            return {"mine": torch.zeros(1)}

    with pytest.raises(OptionError, match=r"Keeping keeps tensors for stage 0 .* mine, and"):
        fit(trainer_of(), Keeping(), checkpoints=Checkpoints(tmp_path))


def test_another_cut_continues_with_the_averages_of_the_same_weights(tmp_path):
    network = nn.Sequential(*(layer for stage in mlp(3) for layer in stage))
    plans = [Plan(("2", "6")), Plan(("4",))]
    first, second = (trainer_of(network, stages=plan) for plan in plans)
    before, after = AveragedWeights(DECAY), AveragedWeights(DECAY)
    fit(first, before, 1, checkpoints=Checkpoints(tmp_path))
    wanted = averages(first, before)
    with pytest.warns(UserWarning, match="3 stages of the checkpoint are not those of this"):
        second.resume(tmp_path)
    fit(second, after, 1)  # which is done already
    assert bits(averages(second, after)) == bits(wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decay": 1.0}, r"decay is 1.0; use a number in \[0, 1\)"),
        ({"decay": -0.1}, r"decay is -0.1; use a number in \[0, 1\)"),
        ({"start": -1}, "start is -1; use a whole number of at least 0"),
    ],
)
def test_averages_that_cannot_be_are_refused(options, said):
    with pytest.raises(OptionError, match=rf"weights cannot be averaged:\n  - {said}"):
        AveragedWeights(**options)
