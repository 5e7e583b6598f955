"""Resuming: the checkpoints that a trainer continues from, and those that it refuses.

After a tick that an error cuts short there are none, and no step.
"""

import math
from dataclasses import replace
from functools import partial
from itertools import islice
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from contract.small import conv, data, different, mlp, sgd, stepped, values_of
from hocket import Checkpoints, Trainer, zoo
from hocket.callbacks import Callback
from hocket.checkpoint.directory import checkpoint_name
from hocket.errors import CheckpointError, DataError, HocketError, NonFiniteError
from hocket.methods import ADL, BP, DDG, DGL, FDG, METHODS
from hocket.remedies import Predict, StalenessRate


def trainer_of(modules=None, method=None, *, resume=None, **options):
    """A trainer, perhaps one that goes on from a checkpoint."""
    options = {"optimizer": partial(sgd, lr=0.01), "resumable": True} | options
    trainer = Trainer(modules or mlp(3), method=method or FDG(), **options)
    if resume is not None:
        trainer.resume(resume)
    return trainer


BATCHES = data(mlp, 6)


@pytest.fixture
def saved(tmp_path):
    """The checkpoint of four steps."""
    stepped(trainer_of(), BATCHES[:4]).save(tmp_path, note={"mine": [1]})
    return tmp_path


def test_a_folder_whose_checkpoint_was_refused_is_still_another_trainings(saved):
    trainer = trainer_of(method=DDG())
    with pytest.raises(CheckpointError, match=OF_ANOTHER):
        trainer.resume(saved)
    with pytest.raises(CheckpointError, match="checkpoints of another training"):
        trainer.fit(BATCHES, epochs=1, progress=False, checkpoints=Checkpoints(saved))


def test_a_loop_of_ones_own_goes_on_from_its_position(tmp_path):
    whole, epochs = trainer_of(), 3
    for _ in range(epochs):
        stepped(whole, BATCHES)
        whole.end_epoch()
    whole.finish()

    trainer = stepped(trainer_of(), BATCHES)
    trainer.end_epoch()
    stepped(trainer, BATCHES[:2]).save(tmp_path, note={"mine": [1]})

    trainer = trainer_of()
    at = trainer.resume(tmp_path)
    assert (at.epoch, at.batch, at.note, at.history) == (1, 2, {"mine": [1]}, ())
    for epoch in range(at.epoch, epochs):
        stepped(trainer, islice(BATCHES, at.batch if epoch == at.epoch else 0, None))
        trainer.end_epoch()
    trainer.finish()
    assert not different(values_of(trainer), values_of(whole))

    trainer = trainer_of(resume=tmp_path)  # which goes on with fit
    trainer.fit(BATCHES, epochs=2, progress=False)
    assert trainer.epoch == 3
    assert not different(values_of(trainer), values_of(whole))


def test_a_loop_of_ones_own_leaves_checkpoints_while_it_goes_on(tmp_path):
    trainer = trainer_of()
    with trainer.saving(Checkpoints(tmp_path, every=2)) as save:
        for x, y in BATCHES[:5]:
            trainer.step(x, y)
            save()
    assert sorted(place.name for place in tmp_path.iterdir()) == [
        checkpoint_name(2, 0),
        checkpoint_name(4, 0),
    ]
    again = trainer_of()
    assert again.resume(tmp_path).tick == 4
    assert not different(values_of(trainer), values_of(stepped(again, BATCHES[4:5])))


def test_a_fit_that_was_over_is_over(tmp_path):
    first, again = trainer_of(mlp(2)), trainer_of(mlp(2))
    kind = Checkpoints(tmp_path)
    history = first.fit(BATCHES, epochs=2, progress=False, checkpoints=kind)
    at = again.resume(tmp_path)
    assert list(at.history) == again.fit(BATCHES, epochs=2, progress=False) == history
    assert not different(values_of(first), values_of(again))
    assert [epoch.number for epoch in again.fit(BATCHES, epochs=1, progress=False)] == [2]


def fit_shuffled(trainer, epochs=3, **options):
    order = torch.Generator().manual_seed(0)
    batches = DataLoader(BATCHES, batch_size=None, shuffle=True, generator=order)
    trainer.fit(batches, epochs=epochs, progress=False, **options)
    return values_of(trainer)


def test_one_that_is_saved_after_an_epoch_of_a_fit_has_the_state_of_its_loader(tmp_path):
    first = trainer_of(mlp(2))
    whole = fit_shuffled(first, on_epoch=lambda epoch: epoch.number or first.save(tmp_path))
    assert not different(whole, fit_shuffled(trainer_of(mlp(2), resume=tmp_path)))


def test_one_that_is_saved_after_a_fit_has_the_state_of_its_loader(tmp_path):
    whole, first = trainer_of(mlp(1), BP()), trainer_of(mlp(1), BP())
    fit_shuffled(first, epochs=1)
    first.save(tmp_path)
    again = trainer_of(mlp(1), BP(), resume=tmp_path)
    assert not different(fit_shuffled(whole), fit_shuffled(again))


def test_a_fit_after_an_epoch_of_ones_own_begins_anew(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2, keep=9)
    trainer_of(mlp(2)).fit(BATCHES, epochs=2, progress=False, checkpoints=checkpoints)
    again = trainer_of(mlp(2), resume=tmp_path / checkpoint_name(8, 1))
    stepped(again, BATCHES[2:]).end_epoch()
    assert [epoch.number for epoch in again.fit(BATCHES, epochs=2, progress=False)] == [2, 3]


def test_a_stop_of_a_fit_that_did_not_begin_is_forgotten(saved):
    class Fails(Callback):
        def on_start(self, trainer, state):
            trainer.request_stop()
            raise ValueError("no place")

    trainer = trainer_of(resume=saved)
    with pytest.raises(ValueError, match="no place"):
        trainer.fit(BATCHES, epochs=2, progress=False, callbacks=[Fails()])
    assert len(trainer.fit(BATCHES, epochs=2, progress=False)) == 2


def test_a_damaged_one_is_passed_over_by_name(saved):
    stepped(trainer_of(resume=saved), BATCHES[4:5]).save(saved)
    part = saved / checkpoint_name(5, 0) / "stage1.pt"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    again = trainer_of()
    with pytest.warns(UserWarning, match=r"a newer checkpoint is not used: .*stage1.pt"):
        assert again.resume(saved).batch == 4
    (saved / checkpoint_name(4, 0) / "stage0.pt").unlink()
    again = trainer_of()
    before = [p.clone() for p in again.network.parameters()]
    with pytest.raises(CheckpointError, match=r"(?s)stage1.pt.*cannot read .*stage0.pt"):
        again.resume(saved)
    assert not different(before, again.network.parameters())


OF_ANOTHER = "is of another training .*"
ACROSS_EDGES = replace(FDG(), edge_delays=((1, 2), (2, 1)))


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def wider():
    modules = mlp(3)
    modules[1][0], modules[1][3] = nn.Linear(5, 6).double(), nn.Linear(6, 5).double()
    return modules


def longer():
    modules = mlp(3)
    modules[1].append(nn.BatchNorm1d(5).double())
    return modules


def grouped(parameters):
    first, *others = parameters
    return torch.optim.SGD([{"params": [first]}, {"params": others}], lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modules": wider()}, r"network.*stage 1: '0.bias' has shape \(4,\) .* wanted \(6,\)"),
        ({"modules": longer()}, r"another network: not both have 1.5.weight"),
        ({"modules": mlp(2)}, r"another network: not both have 1.5.weight"),
        ({"modules": mlp(3)[:2]}, r"another network: not both have 2.0.weight, 2.0.bias, "),
        ({"optimizer": adam}, "stage 0: updated by SGD .*, wanted Adam"),
        ({"optimizer": grouped}, r"groups of \[4\] .*, wanted \[1, 3\]"),
        ({"method": DDG()}, f"{OF_ANOTHER}with its weights.* is ddg, .* was backward-first"),
        ({"method": FDG(shrink=0.5)}, rf"{OF_ANOTHER}shrink=0.5\), and was Delayed\(shrink=1"),
        ({"method": ACROSS_EDGES}, f"{OF_ANOTHER}edge_delays .* was None"),
        ({"seed": 1}, f"{OF_ANOTHER}seed is 1, and was 0"),
        ({"precision": "bf16"}, f"{OF_ANOTHER}precision is bf16, and was fp32"),
        ({"clip": "batch:1.0"}, f"{OF_ANOTHER}clip is batch:1.0, and was none"),
    ],
)
def test_another_training_is_refused_before_anything_is_changed(saved, options, words):
    trainer = trainer_of(**options)
    before = [p.clone() for p in trainer.network.parameters()]
    with pytest.raises(CheckpointError, match=f"(?s){words}"):
        trainer.resume(saved)
    assert not different(before, trainer.network.parameters())


class Wrapped(torch.optim.SGD):
    """Optimizer with a state of a form of its own."""

    def state_dict(self):
        return {"base": super().state_dict(), "k": 5}

    def load_state_dict(self, state):
        super().load_state_dict(state["base"])


def test_an_optimizer_may_have_a_state_of_a_form_of_its_own(tmp_path):
    build = partial(trainer_of, optimizer=partial(Wrapped, lr=0.01, momentum=0.9))
    stepped(build(), BATCHES[:4]).save(tmp_path)
    again = stepped(build(resume=tmp_path), BATCHES[4:])
    assert not different(values_of(stepped(build(), BATCHES)), values_of(again))


@pytest.mark.parametrize("method", [FDG(), DDG(), DGL(), ADL(accumulate=2)])
def test_a_tick_that_was_cut_short_is_not_saved(method, tmp_path):
    """The third update of stage 0 is interrupted; what was saved before is still there."""
    batches = data(mlp, 8)

    def interrupt(event, stage):
        if event.action.kind == "U" and stage.index == 0 and stage.updater.version == 3:
            raise KeyboardInterrupt

    trainer = trainer_of(mlp(2), method, watchers=[interrupt])
    stepped(trainer, batches[:2]).save(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stepped(trainer, batches[2:])
    with pytest.raises(CheckpointError, match="cut short by KeyboardInterrupt"):
        trainer.save(tmp_path)
    later = stepped(trainer_of(mlp(2), method, resume=tmp_path), batches[2:])
    whole = stepped(trainer_of(mlp(2), method), batches)
    assert different(whole.state_dict().values(), later.state_dict().values()) == []


def test_nothing_is_saved_and_no_step_begins_within_a_tick(tmp_path):
    trainer = trainer_of(mlp(2), watchers=[lambda event, stage: trainer.save(tmp_path)])
    with pytest.raises(CheckpointError, match="save was called within a tick, by a watcher or"):
        trainer.step(*BATCHES[0])
    assert not list(tmp_path.iterdir())
    trainer = trainer_of(mlp(2), watchers=[lambda event, stage: trainer.step(*BATCHES[0])])
    with pytest.raises(HocketError, match="the trainer was called within a tick, by a watcher"):
        trainer.step(*BATCHES[0])


def test_a_group_of_batches_that_has_lost_one_is_not_updated():
    batches = data(mlp, 3)
    trainer = trainer_of(mlp(2), BP(accumulate=2))
    stepped(trainer, batches[:1])
    with pytest.raises(DataError, match="is out of bounds"):
        trainer.step(batches[1][0], batches[1][1] + 1000)
    with pytest.raises(HocketError, match="and the batches before their update are lost"):
        stepped(trainer, batches[2:])


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("breaks", ["is out of bounds", "the gradients are there"])
def test_a_batch_that_breaks_is_left_out_where_nothing_is_in_flight(stages, breaks, tmp_path):
    """A single stage can be saved afterwards, unless it had gradients."""

    def watch(event, stage):
        if event.action.kind == "B" and event.action.batch == 0:
            raise ValueError("the gradients are there")

    batches = data(mlp, 3)
    broken = batches[1][0], batches[1][1] + 1000 * (breaks == "is out of bounds")
    trainer, wanted = (trainer_of(mlp(stages), BP(), watchers=w) for w in ([watch], []))
    with pytest.raises(ValueError, match=breaks):
        trainer.step(*broken)
    assert not any(len(stage.in_flight) for stage in trainer.stages)
    if stages == 1 and breaks == "is out of bounds":
        trainer.save(tmp_path)
        trainer = trainer_of(mlp(1), BP(), resume=tmp_path)
    stepped(trainer, batches)
    stepped(wanted, batches)
    assert not different(trainer.network.parameters(), wanted.network.parameters())


@pytest.mark.parametrize("every", [1, 4])
def test_no_step_follows_one_that_found_nan(every):
    trainer = trainer_of(mlp(2), check_every=every)
    batches = data(mlp, 12)
    batches[2][0].fill_(math.nan)
    with pytest.raises(NonFiniteError):
        stepped(trainer, batches)
    with pytest.raises(HocketError, match="cut short by NonFiniteError"):
        stepped(trainer, batches[4:])
    with pytest.raises(HocketError, match="are lost; resume a new"):
        trainer.finish()


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot resume from .*\n.*no folder"):
        trainer_of(resume=tmp_path / "none")


@pytest.mark.filterwarnings("error")
def test_other_threads_and_versions_are_told_before_anything_is_changed(saved, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    trainer = trainer_of()
    with pytest.raises(UserWarning):
        trainer.resume(saved)
    with pytest.warns(UserWarning, match="number of PyTorch's threads was 1 and is 7"):
        assert trainer.resume(saved).batch == 4


def test_no_call_goes_on_with_a_part_of_a_checkpoint(saved):
    trainer, stop = trainer_of(), KeyboardInterrupt
    with patch("torch.optim.SGD.load_state_dict", side_effect=stop), pytest.raises(stop):
        trainer.resume(saved)
    for call, argument in (("evaluate", BATCHES), ("resume", saved), ("save", saved)):
        with pytest.raises(HocketError, match="a resume was cut short"):
            getattr(trainer, call)(argument)


# Other stages.

OTHER = r"the 2 stages of the checkpoint are not those .* [12] batches that were in flight"
REMEDIED = replace(
    FDG(linearize="live").with_remedies(Predict(direction="last"), StalenessRate()),
    name="remedied",
)


@pytest.mark.parametrize(
    "method", [FDG(), ADL(accumulate=2), DGL(), REMEDIED], ids=lambda m: m.name
)
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_weights_and_optimizers_go_on_in_other_stages(method, stages, tmp_path):
    def trainer(count):
        torch.manual_seed(0)
        network = zoo.mlp(in_features=5, hidden=[6, 6, 6], num_classes=3).double()
        return trainer_of(
            network,
            method,
            stages=count,
            optimizer=adam,
            scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
        )

    def remembered(of):
        named = {id(p): name for name, p in of.network.named_parameters()}
        return {
            named[id(p)]: own
            for stage in of.stages
            for p, own in stage.updater.optimizer.state.items()
            if id(p) in named
        }

    first = trainer(2)
    first.fit(BATCHES, epochs=1, progress=False)
    stepped(first, BATCHES[:3]).save(tmp_path)
    then = {name: value.clone() for name, value in first.network.state_dict().items()}
    other = trainer(stages)
    with pytest.warns(UserWarning, match=OTHER):
        at = other.resume(tmp_path)
    assert (at.epoch, at.batch) == (1, 3)
    assert not different(then.values(), other.network.state_dict().values())
    own, was = remembered(other), remembered(first)
    assert own.keys() == was.keys()
    for name in own:
        assert not different(own[name].values(), was[name].values())
    for stage in other.stages:
        assert [group["lr"] for group in stage.updater.optimizer.param_groups] == [0.005]
    before = other.stages[0].updater.version
    stepped(other, BATCHES[3:])
    other.finish()
    assert other.stages[0].updater.version > before


def test_another_optimizer_is_refused_in_other_stages_too(tmp_path):
    def trainer(stages, optimizer):
        torch.manual_seed(0)
        network = zoo.mlp(in_features=5, hidden=[6, 6], num_classes=3).double()
        return trainer_of(network, stages=stages, optimizer=optimizer)

    stepped(trainer(2, sgd), BATCHES[:2]).save(tmp_path)
    with pytest.raises(CheckpointError, match="updated by SGD, and are to be by Adam"):
        trainer(3, adam).resume(tmp_path)
    stepped(trainer(2, partial(Wrapped, lr=0.01)), BATCHES[:3]).save(tmp_path / "own")
    with pytest.raises(CheckpointError, match="Wrapped has a form that only the same stages"):
        trainer(3, partial(Wrapped, lr=0.01)).resume(tmp_path / "own")


@pytest.mark.parametrize("method", ["fdg", "1f1b"])
def test_comparisons_go_on(method, tmp_path):
    """What is compared is known again, also of batches in flight and inside a group."""
    found = []
    for stop in (None, 5):
        seen, batches = [], data(conv, 8)
        options = {
            "method": METHODS[method](),
            "gradient_error_every": 1,
            "on_gradient_error": seen.append,
        }
        trainer = trainer_of(conv(3), **options)
        if stop is not None:
            stepped(trainer, batches[:stop]).save(tmp_path)
            trainer = trainer_of(conv(3), **options)
            batches = batches[trainer.resume(tmp_path).batch :]
        stepped(trainer, batches)
        trainer.finish()
        found.append(seen)
    assert found[0] == found[1] != []


class Center(nn.Module):
    """Loss with a running mean of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3).double())

    def forward(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs - self.center, targets)
        if self.training:
            self.center = (self.center + outputs.detach().mean(0)) / 2
        return loss


class Weighted(nn.CrossEntropyLoss):
    """Loss of PyTorch under a name of the user's."""


class Extra(nn.Linear):
    def get_extra_state(self):
        return 1

    def set_extra_state(self, state):
        pass


def test_what_a_checkpoint_leaves_out_is_told_and_constants_of_a_loss_are_not(tmp_path):
    network = nn.Sequential(Extra(5, 5).double(), nn.Linear(5, 3).double())
    trainer = stepped(trainer_of(network, loss=Center()), BATCHES[:2])
    with pytest.warns(UserWarning, match="leave out buffer 'center' of the loss, the extra"):
        trainer.save(tmp_path)
    for loss in (Weighted(), Weighted(weight=torch.ones(3).double())):
        stepped(trainer_of(mlp(2), loss=loss), BATCHES[:2]).save(tmp_path / str(id(loss)))


def test_an_evaluation_leaves_the_state_of_a_loss_alone():
    loss = Center()
    trainer = stepped(trainer_of(mlp(2), loss=loss), BATCHES[:4])
    center = loss.center.clone()
    trainer.evaluate(BATCHES)
    assert torch.equal(loss.center, center)
    assert loss.training
