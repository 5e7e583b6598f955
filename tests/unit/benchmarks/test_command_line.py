"""``python -m benchmarks``: every measurement is a command named like its file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.checkpoint import CheckpointSettings
from benchmarks.fault_injection import FaultInjectionSettings
from benchmarks.gpu import GpuSettings
from benchmarks.harness.record import Record
from benchmarks.kill_recovery import KillRecoverySettings
from benchmarks.link import LinkSettings, measure_link
from benchmarks.overhead import OverheadSettings
from benchmarks.speed import SpeedSettings
from benchmarks.study_times import StudyTimesSettings
from benchmarks.target import TargetSettings
from benchmarks.versions import VersionsSettings
from hocket.errors import OptionError


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_is_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"benchmarks {name}" in shown
    assert "--out" in shown
    assert (Path(benchmarks.__file__).parent / f"{name.replace('-', '_')}.py").is_file()


def test_a_measurement_is_run_and_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kill-recovery", "--stages", "1"]) == 2
    assert "stages is 1; give 2 or more" in capsys.readouterr().err
    small = "--every 1 --pairs 1 --steps 1 --network mlp --shape 64 --batch 8"
    assert main(["checkpoint", *small.split(), "--out", str(tmp_path)]) == 0
    record = Record.read(tmp_path)
    assert record.settings["every"] == [1]
    assert record.command.startswith("python -m benchmarks checkpoint ")
    assert main(["render", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").is_file()


OF_TARGET = partial(TargetSettings, characters=None)
NO_ROWS = (
    "adl:accumulate=4",
    "fdg:extra_delay=1",
    "fdg:cut=conv1",
    "independent",
    "ddp",
    "diloco",
)
REFUSED = {
    "checkpoint": (
        lambda: CheckpointSettings(every=(0,), pairs=0),
        ("pairs is 0", "every is 0"),
    ),
    "faults": (lambda: FaultInjectionSettings(count=0), ("count is 0",)),
    "methods": (lambda: FaultInjectionSettings(methods=("fgd",)), ("did you mean 'fdg'",)),
    "gpu": (
        lambda: GpuSettings(networks=("mlp",), steps=0),
        ("steps is 0", "unknown network 'mlp'"),
    ),
    "kill": (lambda: KillRecoverySettings(every=0, stages=1), ("every is 0", "stages is 1")),
    "victim": (
        lambda: KillRecoverySettings(victims=(3,)),
        ("a victim is 3; the 3 stages are 0 to 2",),
    ),
    "link": (
        lambda: LinkSettings(rows=(), repetitions=0, mbit_s=(-1,), seconds=0),
        ("repetitions is 0", "rows is empty", "mbit_s is -1", "seconds is 0"),
    ),
    "row": (lambda: measure_link(LinkSettings(rows=["dpd"])), ("unknown row 'dpd'",)),
    "delay of a row": (
        lambda: measure_link(LinkSettings(rows=["fdg:extra_delay=-1"])),
        ("extra_delay is -1 in the row fdg:extra_delay=-1",),
    ),
    "option of a row": (
        lambda: measure_link(LinkSettings(rows=["fdg:extra_dely=1"])),
        ("unknown option 'extra_dely'",),
    ),
    "overhead": (
        lambda: OverheadSettings(rows=(), pairs=0, steps=0),
        ("pairs is 0", "steps is 0", "rows is empty"),
    ),
    "speed": (
        lambda: SpeedSettings(rows=(), steps=0, at_once=0),
        ("steps is 0", "at_once is 0", "rows is empty"),
    ),
    "study": (
        lambda: StudyTimesSettings(baselines=("diloco",), repetitions=0),
        ("repetitions is 0", "'diloco' does not wait for"),
    ),
    "target": (
        lambda: OF_TARGET(links=("fast",), updates=0, rates=(), warmup=-1),
        ("updates is 0", "rates is empty", "the link is 'fast'", "warmup is -1"),
    ),
    "rows of a target": (
        lambda: OF_TARGET(batch=15, rows=NO_ROWS),
        (
            *("accumulates 4 gradients", "'fdg:extra_delay=1' has an extra delay"),
            *("'fdg:cut=conv1' names its cut", "'independent' trains each network alone"),
            *("'ddp' divides the batch of 15 by 2", "'diloco' divides"),
        ),
    ),
    "versions": (
        lambda: VersionsSettings(tests=("tests/none",), threads=0),
        ("threads is 0", "there is no tests/none"),
    ),
}


@pytest.mark.parametrize(("act", "said"), REFUSED.values(), ids=REFUSED)
def test_settings_out_of_range_are_told_at_once_before_anything_starts(
    act: Callable[[], object], said: tuple[str, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as caught:
        act()
    assert [words for words in said if words not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []
