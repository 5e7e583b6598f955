"""Trainings that are compared update by update."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves import CurvesSettings, measure_curves
from benchmarks.harness.record import Record
from benchmarks.report.render import record_table, render
from hocket.errors import OptionError

SETTINGS = partial(
    CurvesSettings,
    network="mlp:hidden=[8,8]",
    data="digits",
    seeds=(0,),
    stages=(2,),
    rows=("fdg", "adl:accumulate=4"),
    updates=30,
    every=10,
    batch=64,
    nice=0,
)


@pytest.mark.usefixtures("in_this_process")
def test_every_training_has_a_curve_of_its_updates(tmp_path: Path) -> None:
    # 1437 samples: 30 updates of 64 go through them more than once.
    measure_curves(SETTINGS(out=tmp_path))
    record = Record.read(tmp_path)
    assert [(row["row"], row["stages"]) for row in record.rows] == [
        ("bp", 1),
        ("fdg", 2),
        ("adl accumulate=4", 2),
    ]
    for row in record.rows:
        assert len(row["train_losses"]) == 3
        assert row["train_losses"][0] > row["train_losses"][-1] > 0
        assert 0 < row["test_error"] < 1
        assert row["failure"] is None
    assert [row["batch_per_tick"] for row in record.rows] == [64, 64, 16]
    render(tmp_path)
    assert (tmp_path / "curves.svg").is_file()
    assert "| 2 | fdg | 64 |" in record_table(record)
    broken = record.rows[1] | {"failure": "the loss became nan", "train_losses": [2.0]}
    failed = record.with_rows([record.rows[0], broken])
    assert "| seed 0 broke off |" in record_table(failed)
    failed.write(tmp_path)
    render(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": 25}, "updates is 25, and cannot be divided into points of 10 each"),
        ({"batch": 30}, "multiple of it instead of 30"),
        ({"stages": (2, 2)}, "listed twice"),
    ],
    ids=str,
)
def test_curves_that_cannot_be_measured_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        measure_curves(SETTINGS(out=tmp_path, **options))
    assert list(tmp_path.iterdir()) == []
