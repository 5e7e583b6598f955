"""Weights & Biases: the calls that it gets, and a run offline where the package is there."""

import sys
from types import ModuleType

import pytest

from hocket.callbacks.wandb_tracker import WandB
from hocket.errors import OptionError

BACKWARD = {"tick": 9, "stage": 1, "batch": 7, "loss": 0.5, "gradient_norm": 2.0, "epoch": 0}


class FakeRun:
    def __init__(self, choices):
        self.choices, self.rows, self.axes, self.code = choices, [], {}, None

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code):
        self.code = exit_code


@pytest.fixture
def package(monkeypatch):
    """A package in the place of wandb, with the runs that were begun."""
    fake = ModuleType("wandb")
    fake.runs, fake.Error = [], type("Error", (Exception,), {})

    def init(**choices):
        fake.runs.append(FakeRun(choices))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def test_a_run_gets_numbers_over_the_axis_of_their_row(package):
    tracker = WandB("mine", choices={"epochs": 3})
    tracker.log("backward", BACKWARD)
    tracker.log("skipped", {"tick": 9, "stage": 1, "batch": 8, "fault": "loss became nan"})
    tracker.log("epoch", {"number": 2, "loss": 0.25, "updates": 40, "evaluation": None})
    tracker.log("evaluation", {"tick": 5, "updates": 40, "error": 0.125})
    tracker.close(failed=True)
    (run,) = package.runs
    assert run.rows == [
        {"backward/loss/stage1": 0.5, "backward/gradient_norm/stage1": 2.0, "batch": 7},
        {"epoch/loss": 0.25, "epoch": 2},
        {"evaluation/error": 0.125, "updates": 40},
    ]
    for row in run.rows:
        *names, place = row
        assert {run.axes[f"{name.partition('/')[0]}/*"] for name in names} == {place}
    assert run.code == 1
    names = {"project": "hocket", "group": "mine", "name": "mine"}
    assert run.choices == names | {"config": {"epochs": 3}, "reinit": "create_new"}


def test_processes_have_runs_in_one_group(package, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "other")
    WandB("mine", "stage1").close()
    (run,) = package.runs
    names = [run.choices[key] for key in ("project", "group", "name")]
    assert names == ["other", "mine", "mine.stage1"]
    assert run.code == 0


def test_a_run_that_does_not_begin_is_refused(package):
    def init(**choices):
        raise package.Error("no API key")

    package.init = init
    with pytest.raises(OptionError, match="cannot start a run: no API key; log in by 'wandb"):
        WandB("mine")


def test_the_package_itself_takes_the_rows_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra wandb").init  # noqa: B018
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracker = WandB("mine", choices={"epochs": 3})
    tracker.log("backward", BACKWARD)
    tracker.close()
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
