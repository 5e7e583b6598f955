"""Short measurements of the throughput of stages while one of them is slow."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.record import Record
from benchmarks.report.render import render
from benchmarks.straggler import StragglerSettings, measure_straggler
from hocket.errors import OptionError


def test_a_slow_stage_slows_those_that_keep_step_and_not_those_that_run_freely(
    tmp_path: Path,
) -> None:
    settings = StragglerSettings(
        out=tmp_path, stages=3, slowed=1, factors=(3,), batches=48, turn_s=0.02
    )
    measure_straggler(settings)
    render(tmp_path)
    assert (tmp_path / "straggler.svg").is_file()
    lockstep, free = Record.read(tmp_path).rows
    slow = 1 / (3 * 0.02)
    assert max(lockstep["batches_per_s"]) < 1.5 * slow
    assert free["batches_per_s"][1] < 1.5 * slow
    assert free["batches_per_s"][2] > free["batches_per_s"][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": 0}, "batches is 0; give 1 or more"),
        ({"slowed": 6}, "slowed is 6; the 6 stages are 0 to 5"),
        ({"factors": (0.5,)}, "a factor is 0.5; give 1 or more"),
    ],
    ids=str,
)
def test_a_pace_that_cannot_be_measured_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        StragglerSettings(out=tmp_path, **options)
