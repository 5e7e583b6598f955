"""Rows of metrics for trackers, Weights & Biases and MLflow among them, and failing ones."""

import json
import sys
from unittest.mock import Mock

import pytest

from contract.small import data, mlp, sgd
from hocket import FDG, Trainer
from hocket.callbacks import mlflow_tracker
from hocket.callbacks.mlflow_tracker import MLflow
from hocket.callbacks.trackers import Trackers, Tracking
from hocket.callbacks.wandb_tracker import WandB
from hocket.errors import OptionError
from hocket.runs.config import RunConfig
from hocket.runs.metrics_log import MetricsLog
from hocket.runs.train import train

BATCHES = data(mlp, 6, size=2)


class Notes:
    title = "Notes"

    def __init__(self, fail_at=None):
        self.rows, self.fail_at, self.closed = [], fail_at, []

    def log(self, kind, values):
        if len(self.rows) == self.fail_at:
            raise ConnectionError("gone")
        self.rows.append({"kind": kind, **values})

    def close(self, *, failed=False):
        self.closed.append(failed)
        if self.fail_at == "end":
            raise ConnectionError("gone")


def trained(log=None, callbacks=()):
    watchers = [log.log_event] if log else []
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, watchers=watchers)
    on_epoch = log.log_epoch if log else None

    def on_evaluation(updates, result):
        if log:
            log.log_evaluation(trainer.engine.tick_count, updates, result)

    told = {"on_epoch": on_epoch, "on_evaluation": on_evaluation, "callbacks": callbacks}
    trainer.fit(BATCHES, BATCHES[:1], epochs=2, evaluate_every=2, progress=False, **told)
    return trainer


def plain(rows):
    """Rows as JSON has them, without times."""
    return [json.loads(json.dumps(row)) | {"seconds": 0} for row in rows]


def test_trackers_of_a_log_get_the_rows_of_its_file(tmp_path):
    """The callback passes on the same rows until no batch enters any more."""
    notes, more = Notes(), Notes()
    with MetricsLog(tmp_path, 2, tensorboard=False, trackers=Trackers([notes])) as log:
        trained(log, [Tracking(more, every=2)])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert plain(notes.rows) == [json.loads(line) | {"seconds": 0} for line in lines]
    assert {row["kind"] for row in notes.rows} == {"backward", "update", "evaluation", "epoch"}
    assert (notes.closed, more.closed) == ([False], [])
    entered = [
        row
        for row in notes.rows
        if row["kind"] == "evaluation" or row.get("tick", 0) < 2 * len(BATCHES)
    ]
    assert plain(more.rows) == plain(entered)


def test_a_training_that_fails_and_a_tracker_that_cannot_be_closed_are_told(tmp_path):
    notes = Notes()
    log = MetricsLog(tmp_path, 2, tensorboard=False, trackers=Trackers([notes]))
    with pytest.raises(ZeroDivisionError), log:
        _ = 1 / 0
    assert notes.closed == [True]
    bad, good = Notes(fail_at="end"), Notes()
    with pytest.warns(UserWarning, match="the training goes on without it"):
        Trackers([bad, good]).close(failed=True)
    assert good.closed == [True]


def test_a_tracker_that_fails_is_left_out_and_the_training_goes_on():
    bad, good = Notes(fail_at=3), Notes()
    with pytest.warns(UserWarning, match="Notes no longer accepts metrics") as told:
        trained(callbacks=[Tracking(bad, good)])
    assert len(told) == 1
    assert len(bad.rows) == 3 < len(good.rows)
    assert bad.closed == [True]


def test_evaluations_of_a_second_fit_are_drawn_behind_those_of_the_first():
    options = {"callbacks": [Tracking(notes := Notes())], "progress": False}
    trained().fit(BATCHES, BATCHES[:1], epochs=1, evaluate_every=3, **options)
    assert [row["updates"] for row in notes.rows if row["kind"] == "evaluation"] == [15, 18]


def test_an_impossible_interval_is_refused():
    with pytest.raises(OptionError, match="every is 0; use a whole number of at least 1"):
        Tracking(every=0)


# Services.


class Refusal(Exception):
    """The error with which a service refuses a call."""


EPOCH = {"number": 2, "loss": 0.25, "updates": 40, "evaluation": None}


# Weights & Biases.

BACKWARD = {"tick": 9, "stage": 1, "batch": 7, "loss": 0.5, "gradient_norm": 2.0, "epoch": 0}


@pytest.fixture
def wandb(monkeypatch):
    """A package in the place of wandb."""
    package = Mock(Error=Refusal, __file__="wandb.py")
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return package


def test_a_run_gets_numbers_over_the_axis_of_their_row(wandb):
    tracker = WandB("mine", choices={"epochs": 3})
    tracker.log("backward", BACKWARD)
    tracker.log("skipped", {"tick": 9, "stage": 1, "batch": 8, "fault": "loss became nan"})
    tracker.log("epoch", EPOCH)
    tracker.log("evaluation", {"tick": 5, "updates": 40, "error": 0.125})
    tracker.close(failed=True)
    run = wandb.init.return_value
    rows = [call.args[0] for call in run.log.call_args_list]
    assert rows == [
        {"backward/loss/stage1": 0.5, "backward/gradient_norm/stage1": 2.0, "batch": 7},
        {"epoch/loss": 0.25, "epoch": 2},
        {"evaluation/error": 0.125, "updates": 40},
    ]
    axes = {c.args[0]: c.kwargs["step_metric"] for c in run.define_metric.call_args_list}
    for row in rows:
        *names, place = row
        assert {axes[f"{name.partition('/')[0]}/*"] for name in names} == {place}
    run.finish.assert_called_once_with(exit_code=1)
    names = {"project": "hocket", "group": "mine", "name": "mine"}
    wandb.init.assert_called_once_with(**names, config={"epochs": 3}, reinit="create_new")


def test_processes_have_runs_in_one_group_and_one_that_does_not_begin_is_refused(
    wandb, monkeypatch
):
    monkeypatch.setenv("WANDB_PROJECT", "other")
    WandB("mine", "stage1").close()
    names = {"project": "other", "group": "mine", "name": "mine.stage1"}
    assert wandb.init.call_args.kwargs.items() >= names.items()
    wandb.init.return_value.finish.assert_called_once_with(exit_code=0)
    wandb.init.side_effect = Refusal("no API key")
    with pytest.raises(OptionError, match="cannot start a run: no API key; log in by 'wandb"):
        WandB("mine")


def test_a_package_whose_import_fails_is_not_said_to_be_missing(wandb, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "wandb.py").write_text("import absent")
    with pytest.raises(OptionError, match=r"is installed and cannot be imported \(.*'absent'"):
        WandB("mine")


def test_the_package_itself_takes_the_rows_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra wandb").init  # noqa: B018
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracker = WandB("mine", choices={"epochs": 3})
    tracker.log("backward", BACKWARD)
    tracker.close()
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


# MLflow.


def backward(batch):
    return {"tick": batch, "stage": 0, "batch": batch, "loss": 0.5 + batch, "epoch": 0}


@pytest.fixture
def client(monkeypatch):
    """The client of a package in the place of mlflow; metrics and choices are plain tuples."""
    package = Mock(__file__="mlflow.py")
    package.exceptions.MlflowException = Refusal
    package.entities.Metric = package.entities.Param = lambda *values: values
    client = package.MlflowClient.return_value
    client.create_experiment.return_value = "new"
    client.create_run.return_value.info.run_id = "r"
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return client


def test_a_run_gets_choices_and_numbers_in_batches_under_names_that_are_allowed(
    client, monkeypatch
):
    monkeypatch.setattr(mlflow_tracker, "BATCH", 2)
    tracker = MLflow("mine", choices={"epochs": 3, "clip": "none", "seed": 1})
    for batch in range(3):
        tracker.log("backward", backward(batch))
    tracker.log("epoch", EPOCH)
    tracker.log("backward", backward(3))
    tracker.log("evaluation", {"updates": 5, "metrics": {"acc@1": 0.75}})
    tracker.close()
    name = "backward/loss/stage0"
    calls = client.log_batch.call_args_list
    assert {call.args for call in calls} == {("r",)}
    sent = [call.kwargs["metrics"] for call in calls if "metrics" in call.kwargs]
    assert [[(name, value, step) for name, value, _, step in each] for each in sent] == [
        [(name, 0.5, 0), (name, 1.5, 1)],
        [(name, 2.5, 2), ("epoch/loss", 0.25, 2)],
        [(name, 3.5, 3), ("evaluation/acc_1", 0.75, 5)],
    ]
    params = [param for call in calls for param in call.kwargs.get("params", ())]
    assert params == [("epochs", "3"), ("clip", "none"), ("seed", "1")]
    client.create_experiment.assert_called_once_with("hocket")
    client.create_run.assert_called_once_with(
        "new", tags={"hocket.training": "mine"}, run_name="mine"
    )
    client.set_terminated.assert_called_once_with("r", "FINISHED")


def test_processes_have_runs_of_their_own_in_an_experiment_that_may_be_there(
    client, monkeypatch
):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "old")
    client.create_experiment.side_effect = Refusal("exists")
    client.get_experiment_by_name.return_value.experiment_id = "found"
    MLflow("mine", "stage1").close(failed=True)
    client.get_experiment_by_name.assert_called_once_with("old")
    client.create_run.assert_called_once_with(
        "found", tags={"hocket.training": "mine"}, run_name="mine.stage1"
    )
    client.set_terminated.assert_called_once_with("r", "FAILED")
    client.create_run.side_effect = Refusal("no server")
    with pytest.raises(OptionError, match="cannot start a run: no server"):
        MLflow("mine")
    client.get_experiment_by_name.return_value = None
    with pytest.raises(OptionError, match="cannot start a run: exists"):
        MLflow("mine")


def test_trackers_have_failed_if_another_one_does_not_begin(client, wandb, tmp_path):
    wandb.init.side_effect = Refusal("no API key")
    with pytest.raises(OptionError, match="no API key"):
        train(RunConfig(log_to="mlflow,wandb", run_dir=tmp_path / "run"))
    client.set_terminated.assert_called_once_with("r", "FAILED")


@pytest.mark.filterwarnings("default")  # of the package's own
def test_the_package_itself_takes_the_rows(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/metrics.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny keeps no database by itself")
    tracker = MLflow("mine", choices={"epochs": 3})
    for batch in range(3):
        tracker.log("backward", backward(batch))
    tracker.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("hocket").experiment_id])
    history = client.get_metric_history(run.info.run_id, "backward/loss/stage0")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert run.data.params == {"epochs": "3"}
    assert run.info.status == "FINISHED"
