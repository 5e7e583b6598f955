"""``python -m benchmarks``: every measurement is a command named like its file."""

import threading
import time
from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.checkpoint import CheckpointSettings
from benchmarks.fault_injection import FaultInjectionSettings
from benchmarks.gpu import GpuSettings
from benchmarks.harness import rounds
from benchmarks.harness.record import Record
from benchmarks.idle_link import IdleLinkSettings
from benchmarks.kill_recovery import KillRecoverySettings
from benchmarks.link import LinkSettings, measure_link
from benchmarks.memory import MemorySettings
from benchmarks.overhead import OverheadSettings
from benchmarks.speed import SpeedSettings
from benchmarks.target import TargetSettings
from benchmarks.versions import VersionsSettings
from hocket.checkpoint import writer
from hocket.errors import OptionError


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_is_a_command(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"benchmarks {name}" in shown
    assert "--out" in shown
    assert (Path(benchmarks.__file__).parent / f"{name.replace('-', '_')}.py").is_file()


def test_a_measurement_is_run_and_rendered(tmp_path, capsys, monkeypatch):
    """No checkpoint is written during the block after its own, however slow the disk is."""
    write, block, running = writer.write_file, rounds.time_block, set()

    def write_slowly(*words):
        time.sleep(0.1)
        return write(*words)

    def note_threads(*words):
        running.update(thread.name for thread in threading.enumerate())
        return block(*words)

    monkeypatch.setattr(writer, "write_file", write_slowly)
    monkeypatch.setattr(rounds, "time_block", note_threads)
    assert main(["kill-recovery", "--stages", "1"]) == 2
    assert "stages is 1; give 2 or more" in capsys.readouterr().err
    small = "--every 2 --pairs 2 --steps 2 --network mlp --shape 64 --batch 8"
    assert main(["checkpoint", *small.split(), "--out", str(tmp_path)]) == 0
    assert "every 2: " in capsys.readouterr().err
    record = Record.read(tmp_path)
    assert record.settings["every"] == [2]
    assert record.command.startswith("python -m benchmarks checkpoint ")
    assert [row["row"] for row in record.rows] == ["plain", "resumable", "every 2"]
    assert all(row["ratio"] > 0 for row in record.rows)
    none, kept, some = record.rows
    assert [none["checkpoints"], kept["checkpoints"]] == [0, 0]
    assert none["still_s"] is none["save_s"] is none["mib"] is None
    # Two blocks of two steps, each after one that is not timed.
    assert some["checkpoints"] == 3
    assert running
    assert "hocket-saver" not in running
    assert 0 < some["still_s"] < 60
    assert min(some["save_s"], some["mib"]) > 0
    assert main(["render", str(tmp_path)]) == 0
    lines = (tmp_path / "README.md").read_text().splitlines()
    (line,) = (x for x in lines if x.startswith("| plain |"))
    assert line.endswith("| 0 | - | - | - |")


NO_ROWS = ("adl:accumulate=4", "fdg:cut=conv1", "independent", "fdg-by-hand", "ddp", "diloco")


def link(**options):
    measure_link(LinkSettings(**options))


REFUSED = [
    (CheckpointSettings, {"every": (0,), "pairs": 0}, "pairs is 0; every is 0"),
    (FaultInjectionSettings, {"count": 0}, "count is 0"),
    (FaultInjectionSettings, {"methods": ("fgd",)}, "did you mean 'fdg'"),
    (GpuSettings, {"networks": ("mlp",), "steps": 0}, "steps is 0; unknown network 'mlp'"),
    (KillRecoverySettings, {"every": 0, "stages": 1}, "every is 0; stages is 1"),
    (KillRecoverySettings, {"victims": (3,)}, "a victim is 3"),
    (KillRecoverySettings, {"network": "mpl"}, "did you mean 'mlp'"),
    (KillRecoverySettings, {"data": "digts"}, "did you mean 'digits'"),
    (IdleLinkSettings, {"mib": [], "messages": 0}, "mib is empty; messages is 0"),
    (IdleLinkSettings, {"pauses": [0.5, 0]}, "pauses has 0"),
    (link, {"rows": (), "repetitions": 0, "seconds": 0}, "repetitions is 0; rows is empty"),
    (link, {"mbit_s": (-1,), "seconds": 0}, "mbit_s is -1; seconds is 0"),
    (link, {"rows": ["dpd"]}, "unknown row 'dpd'"),
    (link, {"rows": ["fdg:extra_delay=-1"]}, "extra_delay is -1 in the row fdg:extra_delay=-1"),
    (link, {"rows": ["fdg:extra_dely=1"]}, "unknown option 'extra_dely'"),
    (MemorySettings, {"stages": (0, 2, 13)}, "stages is 0; stages is 13"),
    (OverheadSettings, {"rows": (), "pairs": 0, "steps": 0}, "pairs is 0; rows is empty"),
    (SpeedSettings, {"rows": (), "steps": 0, "at_once": 0}, "steps is 0; at_once is 0"),
    (TargetSettings, {"links": ("fast",), "updates": 0}, "the link is 'fast'; updates is 0"),
    (TargetSettings, {"rates": (), "warmup": -1}, "rates is empty; warmup is -1"),
    (TargetSettings, {"rows": ("bp",), "scaled": ("bp", "ddp")}, "scaled has 'ddp'; give"),
    (TargetSettings, {"updates": 9, "machines": (2,)}, "warmup is 100; machines is 2"),
    (
        TargetSettings,
        {"batch": 15, "rows": NO_ROWS},
        "accumulates 4 gradients; 'fdg:cut=conv1' names its cut; 'independent' trains each "
        "network alone; 'fdg-by-hand' trains; 'ddp' divides the batch of 15 by 2; 'diloco' div",
    ),
    (VersionsSettings, {"tests": ("tests/none",), "threads": 0}, "threads is 0; no tests/none"),
]


@pytest.mark.parametrize(("act", "options", "said"), REFUSED)
def test_settings_out_of_range_are_told_at_once_before_anything_starts(
    act, options, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as caught:
        act(**options)
    assert [words for words in said.split("; ") if words not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []


def test_memory_is_predicted_and_does_not_grow_for_reversible_stages(tmp_path):
    given = ["memory", "--rows", "fdg", "--rows", "petra", "--stages", "2", "--stages", "3"]
    assert main([*given, "--out", str(tmp_path)]) == 0
    assert main(["render", str(tmp_path)]) == 0
    fdg, deeper_fdg, petra, deeper_petra = Record.read(tmp_path).rows
    for row in (fdg, deeper_fdg, petra, deeper_petra):
        pairs = zip(row["predicted"], row["measured"], strict=True)
        assert all(0.7 < predicted / measured < 1 for predicted, measured in pairs)
    assert deeper_fdg["together"] > 1.4 * fdg["together"]
    assert deeper_petra["together"] < petra["together"]
    assert (tmp_path / "README.md").read_text().count("| petra |") == 2
