"""MLflow: the calls that it gets, and a database where the package is there."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from hocket.callbacks import mlflow_tracker
from hocket.callbacks.mlflow_tracker import MLflow
from hocket.errors import OptionError


def backward(batch):
    return {"tick": batch, "stage": 0, "batch": batch, "loss": 0.5 + batch, "epoch": 0}


class FakeClient:
    """What an experiment gets; one with the name ``old`` is there already."""

    def __init__(self, package):
        self.package, self.batches, self.params, self.ended = package, [], [], []

    def create_experiment(self, name):
        if name == "old":
            raise self.package.exceptions.MlflowException("exists")
        return f"new {name}"

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=f"found {name}")

    def create_run(self, experiment, tags, run_name):
        if self.package.refuses:
            raise self.package.exceptions.MlflowException("no server")
        self.run = (experiment, tags, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run, metrics=(), params=()):
        assert run == "r"
        self.params += params
        if metrics:
            self.batches.append([(name, value, step) for name, value, _, step in metrics])

    def set_terminated(self, run, status):
        self.ended.append((run, status))


@pytest.fixture
def package(monkeypatch):
    """A package in the place of mlflow, with its client."""
    fake = ModuleType("mlflow")
    fake.refuses = False
    fake.exceptions = SimpleNamespace(MlflowException=type("MlflowException", (Exception,), {}))
    fake.entities = SimpleNamespace(Metric=lambda *values: values, Param=lambda *values: values)
    fake.client = FakeClient(fake)
    fake.MlflowClient = lambda: fake.client
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fake


def test_a_run_gets_choices_and_numbers_over_the_axis_of_their_row(package, monkeypatch):
    monkeypatch.setattr(mlflow_tracker, "BATCH", 2)
    tracker = MLflow("mine", choices={"epochs": 3, "clip": "none", "seed": 1})
    client = package.client
    for batch in range(3):
        tracker.log("backward", backward(batch))
    tracker.log("epoch", {"number": 2, "loss": 0.25, "updates": 40, "evaluation": None})
    tracker.log("backward", backward(3))
    tracker.close()
    name = "backward/loss/stage0"
    assert client.batches == [
        [(name, 0.5, 0), (name, 1.5, 1)],
        [(name, 2.5, 2), ("epoch/loss", 0.25, 2)],
        [(name, 3.5, 3)],
    ]
    assert client.params == [("epochs", "3"), ("clip", "none"), ("seed", "1")]
    assert client.run == ("new hocket", {"hocket.training": "mine"}, "mine")
    assert client.ended == [("r", "FINISHED")]


def test_processes_have_runs_of_their_own_in_an_experiment_that_may_be_there(
    package, monkeypatch
):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "old")
    MLflow("mine", "stage1").close(failed=True)
    assert package.client.run == ("found old", {"hocket.training": "mine"}, "mine.stage1")
    assert package.client.ended == [("r", "FAILED")]
    package.refuses = True
    with pytest.raises(OptionError, match="cannot start a run: no server"):
        MLflow("mine")


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
