import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.accuracy import AccuracySettings, measure_accuracy
from benchmarks.harness import jobs
from benchmarks.harness.record import Record
from benchmarks.harness.training import TrainingJob, build_job_trainer, run_job
from hocket import data as datasets
from hocket.errors import HocketError, OptionError

ROWS = ("bp", "adl:accumulate=4")
# Of several workers of pytest each would measure for itself.
pytestmark = pytest.mark.xdist_group("accuracy")
SETTINGS = partial(
    AccuracySettings, network="mlp", data="digits", rows=ROWS, seeds=(0,), epochs=1, nice=0
)
JOB = TrainingJob(
    row="fdg",
    seed=3,
    network="mlp",
    data="digits",
    subset=None,
    stages=2,
    epochs=1,
    batch=256,
    optimizer="SGD:lr=0.1,momentum=0.9",
    milestones=(),
    channels_last=False,
    threads=1,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("records") / "accuracy"
    measure_accuracy(SETTINGS(out=out, jobs=2))
    return out


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let processes fail at their start; return the arguments with which they were started."""
    started: list[str] = []

    def refuse(_: str, *words: str, threads: int) -> str:
        started.extend(words)
        raise HocketError("killed")

    monkeypatch.setattr(jobs, "run_module", refuse)
    return started


def test_every_training_has_a_row_for_every_epoch(measured: Path) -> None:
    record = Record.read(measured)
    assert [row["row"] for row in record.rows] == ["bp", "adl accumulate=4"]
    assert [row["batch_per_tick"] for row in record.rows] == [128, 32]
    for row in record.rows:
        assert row["epoch"] == 1
        assert row["failure"] is None
        assert 0 < row["test_error"] < 1
        assert min(row["train_loss"], row["test_loss"], row["time_s"]) > 0
        assert len(row["staleness"]) == 2
    assert record.settings["rows"] == list(ROWS)
    assert str(measured) not in record.command


def test_trainings_that_are_there_are_not_repeated(
    measured: Path, no_process: list[str]
) -> None:
    before = Record.read(measured)
    measure_accuracy(SETTINGS(out=measured, jobs=2))
    assert Record.read(measured) == before
    assert no_process == []


def test_an_interrupted_measurement_goes_on_with_what_is_missing(
    measured: Path, no_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = (measured / "record.json").read_bytes()
    with pytest.raises(HocketError, match="the others are kept"):
        measure_accuracy(SETTINGS(out=measured, seeds=(0, 1), rows=("bp",)))
    assert len([word for word in no_process if word.startswith("{")]) == 1
    assert '"seed": 1' in no_process[0]
    assert "[2/2] bp-k2-seed1: failed" in capsys.readouterr().err
    assert (measured / "record.json").read_bytes() == record


@pytest.mark.usefixtures("no_process")
def test_trainings_with_other_settings_are_not_mixed(measured: Path) -> None:
    with pytest.raises(OptionError, match=r"epochs 1 != 2"):
        measure_accuracy(SETTINGS(out=measured, epochs=2))


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rows": ()}, "give at least one"),
        ({"jobs": 0}, "jobs is 0"),
        ({"batch": 30}, "multiple of it instead of 30"),
        ({"seeds": (0, 0)}, "listed twice"),
        ({"rows": ("fgd",)}, "did you mean"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=match):
        measure_accuracy(SETTINGS(out=tmp_path, **options))
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(HocketError, match="it reads no files"):
        measure_accuracy(SETTINGS(out=tmp_path / "out", rows=("bp",), data_dir=tmp_path))


def test_a_training_that_diverges_is_a_result() -> None:
    result = run_job(dataclasses.replace(JOB, optimizer="SGD:lr=1e30"), None)
    assert result["epochs"] == []
    assert "became" in result["failure"]


def test_equal_seeds_give_equal_weights_to_all_rows() -> None:
    data = datasets.load("digits", batch_size=8, seed=0)
    weights = [
        torch.cat([p.flatten() for p in build_job_trainer(job, data).network.parameters()])
        for job in (JOB, dataclasses.replace(JOB, row="dgl"), dataclasses.replace(JOB, seed=4))
    ]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_the_rate_falls_at_the_milestones() -> None:
    data = datasets.load("digits", batch_size=256, seed=0)
    trainer = build_job_trainer(dataclasses.replace(JOB, milestones=(1,)), data)
    rates = []
    for _ in range(2):
        trainer.fit(data.train, epochs=1, progress=False)
        rates.append(trainer.stages[0].updater.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.01])
