"""Callbacks: their calls, their states in checkpoints, and stops that they ask for."""

import errno
import os
import signal
import time
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

from contract.small import data, mlp
from hocket import Checkpoints, Trainer
from hocket.callbacks.best_epoch import BestWeights, EarlyStopping
from hocket.checkpoint import writer
from hocket.checkpoint.directory import read_manifest
from hocket.errors import CheckpointError, HocketError, OptionError
from hocket.training.callback import Callback
from hocket.training.results.metrics import EpochResult, EvaluationResult
from unit.training.test_resume import trainer_of

BATCHES = data(mlp, 4)


def fit(trainer, *callbacks, epochs=3, **options):
    options = {"progress": False} | options
    return trainer.fit(BATCHES, BATCHES[:1], epochs=epochs, callbacks=callbacks, **options)


class Diary(Callback):
    """Counts epochs in its state, writes down its calls, and may ask to stop."""

    def __init__(self, stop_in=None):
        self.calls, self.epochs, self.stop_in = [], 0, stop_in

    def on_start(self, trainer, state):
        self.calls.append(("start", state))
        self.epochs = state["epochs"] if state else 0

    def on_step(self, trainer, events):
        self.calls.append(("step", len(events)))
        if self.epochs == self.stop_in:
            trainer.request_stop()

    def on_epoch(self, trainer, result):
        self.epochs += 1
        self.calls.append(("epoch", result))

    def on_checkpoint(self, trainer, folder):
        self.calls.append(("checkpoint", (folder, read_manifest(folder).tick)))

    def state_dict(self):
        return {"epochs": self.epochs}


def test_callbacks_see_every_step_and_epoch_with_its_result():
    diary, told = Diary(), []
    history = fit(trainer_of(), diary, on_epoch=told.append, epochs=2)
    assert [kind for kind, _ in diary.calls] == ["start", *2 * [*4 * ["step"], "epoch"]]
    assert [what for kind, what in diary.calls if kind == "epoch"] == told == history
    assert all(count for kind, count in diary.calls if kind == "step")


def test_a_stop_comes_at_the_end_of_its_epoch_and_a_new_fit_goes_on_behind_it():
    diary, trainer = Diary(stop_in=1), trainer_of()
    history = fit(trainer, diary, epochs=5)
    assert [epoch.number for epoch in history] == [0, 1]
    assert history[1].evaluation is not None
    assert [kind for kind, _ in diary.calls].count("step") == 2 * len(BATCHES)
    assert [epoch.number for epoch in fit(trainer, epochs=2)] == [2, 3]


def test_checkpoints_keep_the_states_of_all_callbacks(tmp_path):
    kept = Checkpoints(tmp_path)
    fit(trainer_of(), Diary(), Diary(stop_in=1), checkpoints=kept, epochs=4)
    fit(trainer_of(resume=tmp_path), checkpoints=kept, epochs=3)  # without them, states stay
    diaries = Diary(), Diary(), Diary()
    assert len(fit(trainer_of(resume=tmp_path), *diaries, epochs=4)) == 4
    starts = [diary.calls[0] for diary in diaries]
    assert starts == [("start", {"epochs": 2}), ("start", {"epochs": 2}), ("start", None)]


class Fading(Callback):
    """Keeps a state and tensors in the first epoch, and nothing later."""

    def __init__(self):
        self.starts, self.loaded, self.done = [], [], 0

    def on_start(self, trainer, state):
        self.starts.append(state)
        self.done = trainer.epoch

    def on_epoch(self, trainer, result):
        self.done = result.number + 1

    def state_dict(self):
        return {"pending": [1, 2]} if self.done == 1 else {}

    def stage_tensors(self, stage):
        return {n: w.detach() for n, w in stage.module.named_parameters() if self.done == 1}

    def load_stage_tensors(self, stage, tensors):
        self.loaded.append(stage.index)


def test_a_state_that_has_become_empty_stays_so(tmp_path):
    started = []
    for epochs in range(1, 5):
        trainer, fading = trainer_of(resume=tmp_path if epochs > 1 else None), Fading()
        fit(trainer, fading, epochs=epochs, checkpoints=Checkpoints(tmp_path))
        started.append((*fading.starts, len(fading.loaded)))
    assert started == [(None, 0), ({"pending": [1, 2]}, 3), ({}, 0), ({}, 0)]


@pytest.mark.parametrize("value", [np.float32(0.5), {1: 0, "a": 0}, {0}])
def test_a_state_that_is_no_json_is_refused_by_name(tmp_path, value):
    diary = Diary()
    diary.state_dict = lambda: {"best": value}
    with pytest.raises(OptionError, match="the callback Diary has a state"):
        fit(trainer_of(), diary, checkpoints=Checkpoints(tmp_path))
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def pass_an_hour(monkeypatch):
    """Return a function that sets the clock of this process an hour ahead."""
    own, hours = time.perf_counter, []
    monkeypatch.setattr(time, "perf_counter", lambda: own() + 3600 * len(hours))
    return lambda: hours.append(1)


def test_the_seconds_of_an_epoch_after_a_resume_are_those_of_its_batches(
    tmp_path, pass_an_hour
):
    """Neither a callback before the checkpoint nor an evaluation that was stopped counts."""
    slow = Callback()
    slow.on_epoch = lambda trainer, result: pass_an_hour()
    fit(trainer_of(), slow, epochs=1, checkpoints=Checkpoints(tmp_path / "a"))
    resumed = trainer_of(resume=tmp_path / "a")
    epochs = fit(resumed, epochs=2)
    assert 0 < resumed.trained_s == epochs[-1].seconds < 3600

    def stopping():
        """Data that send a signal as soon as they are read, and are slow to come."""
        os.kill(os.getpid(), signal.SIGINT)
        pass_an_hour()
        yield BATCHES[0]

    options = {"checkpoints": Checkpoints(tmp_path / "b"), "progress": False}
    with pytest.raises(KeyboardInterrupt):
        trainer_of().fit(BATCHES, stopping(), epochs=1, **options)
    assert 0 < fit(trainer_of(resume=tmp_path / "b"), epochs=1)[0].seconds < 3600


def told(diary):
    """Ticks of the checkpoints that a diary was told of, which had been complete then."""
    return [what[1] for kind, what in diary.calls if kind == "checkpoint"]


def test_a_checkpoint_is_told_once_it_is_complete_and_before_the_next_one(tmp_path):
    diary, trainer, begun = Diary(), trainer_of(), []

    def note():
        begun.append(len(told(diary)))

    checkpoints = Checkpoints(tmp_path, every=2, keep=100, note=note)
    fit(trainer, diary, epochs=2, checkpoints=checkpoints)
    folders = [what[0] for kind, what in diary.calls if kind == "checkpoint"]
    assert folders == sorted(tmp_path.iterdir())
    assert told(diary) == [2, 4, 4, 6, 8, 12]  # at 4 every second tick and the epoch end
    assert begun == [0, 1, 2, 3, 4, 5]  # the states of callbacks know of those before


def test_the_checkpoint_of_a_stopped_training_is_told_and_one_that_cannot_be_written_is_not(
    tmp_path, monkeypatch
):
    class Stop(Callback):
        def on_step(self, trainer, events):
            os.kill(os.getpid(), signal.SIGINT)

    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(), diary, Stop(), checkpoints=Checkpoints(tmp_path / "a"))
    assert told(diary) == [1]

    # It is tried again if it could not be written as one that was due.
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    once = Mock(wraps=writer.finish_checkpoint, side_effect=[full, DEFAULT])
    monkeypatch.setattr(writer, "finish_checkpoint", once)
    diary, checkpoints = Diary(), Checkpoints(tmp_path / "b", every=1)
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(KeyboardInterrupt):
        fit(trainer_of(), diary, Stop(), checkpoints=checkpoints)
    assert told(diary) == [1]

    monkeypatch.setattr(writer, "finish_checkpoint", Mock(side_effect=full))
    diary, checkpoints = Diary(), Checkpoints(tmp_path / "c")
    with pytest.warns(UserWarning, match="No space left"):
        fit(trainer_of(), diary, epochs=1, checkpoints=checkpoints)
    assert told(diary) == []


def result(number, value):
    """All results of an epoch have this value; None is an error that there is not."""
    evaluation = EvaluationResult(loss=value, error=value, samples=1)
    return EpochResult(number, value, evaluation, 1.0, 1, (), ())


def epochs_until_stop(stopping, values, state=None):
    """Number of epochs with these errors until a stop; None without one."""
    trainer = Mock(has_common_epochs=True)
    stopping.on_start(trainer, state)
    first = state["best"]["number"] + 1 + state["waited"] if state else 0
    for number, value in enumerate(values, first):
        if trainer.request_stop.called:
            return number
        stopping.on_epoch(trainer, result(number, value))
    return first + len(values) if trainer.request_stop.called else None


STOPS = {
    "falling": ({}, [5, 4, 3, 2, 1], None, ""),
    "flat": ({}, [5, 5, 5, 5, 5], 4, "not fallen below 5 for 3 epochs, since"),
    "a better one in between": ({}, [5, 5, 5, 4, 4, 4, 4], 7, "below 4 for 3 epochs"),
    "patience of one": ({"patience": 1}, [5, 4, 4, 3], 3, "below 4 for 1 epoch, since epoch 2"),
    "too little better": ({"min_delta": 1.5}, [5, 4, 4.5, 4, 3], 4, "5 by more than 1.5 for 3"),
    "NaN": ({}, [float("nan")] * 4, 3, "was not finite for 3 epochs"),
}


@pytest.mark.parametrize("metric", ["test_error", "test_loss", "train_loss"])
@pytest.mark.parametrize("case", STOPS)
def test_early_stopping_stops_after_its_patience(case, metric):
    options, values, expected, reason = STOPS[case]
    stopping = EarlyStopping(metric, **options)
    assert epochs_until_stop(stopping, values) == expected
    assert epochs_until_stop(stopping, values) == expected  # a new fit counts anew
    assert reason in stopping.reason
    assert bool(stopping.reason) == bool(reason)


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_resumed_training_stops_after_the_same_epoch(cut):
    values = [5, 4, 4, 4, 4, 4]
    before = EarlyStopping()
    assert epochs_until_stop(before, values[:cut]) is None
    resumed = EarlyStopping()
    assert epochs_until_stop(resumed, values[cut:], before.state_dict()) == 5
    assert values[resumed.best_epoch] == 4


def test_a_training_that_had_stopped_stays_so_unless_patience_is_added(tmp_path):
    for place, patience, epochs in ((None, 1, 2), (tmp_path, 1, 2), (tmp_path, 3, 4)):
        trainer = trainer_of(resume=place)
        stopping = EarlyStopping("train_loss", patience=patience, min_delta=1e6)
        history = fit(trainer, stopping, epochs=9, checkpoints=Checkpoints(tmp_path))
        assert len(history) == epochs


def test_the_file_of_best_weights_has_those_of_the_best_epoch(tmp_path, monkeypatch):
    """The best epoch is in the middle, as the loss of later ones is made larger."""
    file = tmp_path / "best.pt"
    monkeypatch.chdir(tmp_path)
    trainer, best, seen = trainer_of(), BestWeights("best.pt", "train_loss"), []
    monkeypatch.chdir("/")
    best.on_start(trainer, None)
    for number, loss in enumerate([3, 1, 2]):
        fit(trainer, epochs=1)
        seen.append({k: v.clone() for k, v in trainer.state_dict().items()})
        best.on_epoch(trainer, result(number, loss))
    kept = torch.load(file)
    assert kept.keys() == seen[1].keys()
    assert all(torch.equal(kept[name], seen[1][name]) for name in kept)
    assert not all(torch.equal(kept[name], seen[2][name]) for name in kept)
    assert best.best_epoch == 1

    resumed = BestWeights(file, "train_loss")
    resumed.on_start(trainer, best.state_dict())
    resumed.on_epoch(trainer, result(3, 2))
    assert resumed.best_epoch == 1
    assert all(torch.equal(value, kept[name]) for name, value in torch.load(file).items())


def test_best_weights_that_cannot_be_written_are_an_error(tmp_path):
    with pytest.raises(OptionError, match="there is no folder"):
        fit(trainer_of(), BestWeights(tmp_path / "none" / "best.pt"))
    (tmp_path / "best.pt").mkdir()
    with pytest.raises(CheckpointError, match="epoch 0 is the best so far"):
        fit(trainer_of(), BestWeights(tmp_path / "best.pt"))


def test_a_metric_of_the_user_may_rise(tmp_path):
    values = iter([0.5, 0.6, 0.6, 0.4])
    trainer = trainer_of(metrics={"accuracy": lambda *_: next(values)})
    best = BestWeights(tmp_path / "best.pt", "accuracy", mode="max")
    stopping = EarlyStopping("accuracy", patience=2, mode="max")
    history = fit(trainer, stopping, best, epochs=9)
    assert (len(history), stopping.best_epoch, best.best_epoch) == (4, 1, 1)
    assert "accuracy has not risen above 0.6 for 2 epochs" in stopping.reason


REFUSALS = {
    "mode": (lambda: EarlyStopping(mode="up"), "mode is 'up'; use 'min' or 'max'"),
    "metric": (
        lambda: fit(trainer_of(metrics={"accuracy": lambda *_: 1}), EarlyStopping("acuracy")),
        "unknown metric 'acuracy' (did you mean 'accuracy'?)",
    ),
    "patience": (lambda: EarlyStopping(patience=0), "patience is 0"),
    "half an epoch": (lambda: EarlyStopping(patience=2.5), "patience is 2.5"),
    "min_delta": (lambda: EarlyStopping(min_delta=-1), "min_delta is -1"),
    "text": (lambda: EarlyStopping(min_delta="1"), "min_delta is '1'; use a number"),
    "no evaluation": (
        lambda: trainer_of().fit(BATCHES, epochs=1, callbacks=[EarlyStopping()]),
        "follows test_error, and epoch 0 was not evaluated",
    ),
    "no classes": (lambda: epochs_until_stop(EarlyStopping(), [None]), "epoch 0 has no error"),
    "another metric than before": (
        lambda: EarlyStopping("test_loss").on_start(Mock(), EarlyStopping().state_dict()),
        "is to watch test_loss (mode 'min'), and watched test_error (mode 'min') before",
    ),
    "another mode than before": (
        lambda: EarlyStopping(mode="max").on_start(Mock(), EarlyStopping().state_dict()),
        "is to watch test_error (mode 'max'), and watched test_error (mode 'min') before",
    ),
    "stages that run freely": (
        lambda: EarlyStopping().on_start(Mock(has_common_epochs=False), None),
        "the stages run",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_early_stopping_refuses(case):
    act, text = REFUSALS[case]
    with pytest.raises(OptionError) as caught:
        act()
    assert text in str(caught.value)


def test_without_a_fit_or_common_epochs_nobody_can_ask_to_stop(monkeypatch):
    with pytest.raises(HocketError, match="no fit is under way"):
        trainer_of().request_stop()
    monkeypatch.setattr(Trainer, "has_common_epochs", False)
    with pytest.raises(OptionError, match="'fdg' run freely"):
        trainer_of().request_stop()
