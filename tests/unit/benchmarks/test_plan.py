"""Forecasts for methods and networks, compared with measurements."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan as module
from benchmarks.harness.record import Record
from benchmarks.harness.workload import Workload
from benchmarks.plan import PlanSettings, measure_plan
from benchmarks.report.render import record_table, render
from hocket.errors import OptionError

SMALL = Workload(
    network="mlp:hidden=[300,300,300]",
    shape=(64,),
    batch=64,
    stages=2,
    threads=1,
    channels_last=False,
)
SETTINGS = partial(
    PlanSettings, networks=("small",), rows=("bp", "fdg"), repetitions=1, steps=2
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NETWORKS", {"small": SMALL})


def test_every_method_on_every_network_is_foreseen_and_measured(tmp_path: Path) -> None:
    measure_plan(SETTINGS(out=tmp_path))
    record = Record.read(tmp_path)
    assert [(row["network"], row["row"]) for row in record.rows] == [
        ("small", "bp"),
        ("small", "fdg"),
    ]
    for row in record.rows:
        assert len(row["cuts"]) == 1
        assert row["ratio"] > 0
        assert row["ratios"] == [row["ratio"]]
        assert row["predicted_ms"] / row["measured_ms"] == pytest.approx(row["ratio"])
        assert all(0.5 < mib < 30 for mib in row["predicted_mib"])
        assert all(0.5 < mib < 60 for mib in row["measured_mib"])
    bp, fdg = record.rows
    assert fdg["predicted_mib"][0] > bp["predicted_mib"][0]
    assert fdg["predicted_mib"][1] == pytest.approx(bp["predicted_mib"][1])
    shown = record_table(record)
    assert "\n| small | fdg | hidden" in shown
    assert "Goals: time within 7%: " in shown
    render(tmp_path)
    assert (tmp_path / "plan.svg").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"networks": ("large",)}, "unknown network 'large'; there are: small"),
        ({"rows": ()}, "rows is empty; give at least one"),
        ({"rows": ("adl:accumulate=4",)}, "a multiple of it instead of 2"),
        ({"rows": ("dgl-async",)}, "the stages of 'dgl-async' run freely"),
        ({"stages": 1}, "stages is 1; give 2 or more"),
        ({"repetitions": 0}, "repetitions is 0; give 1 or more"),
    ],
    ids=str,
)
def test_what_cannot_be_foreseen_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        SETTINGS(out=tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
