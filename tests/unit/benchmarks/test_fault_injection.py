"""A short measurement of faults: every trial is kept, and all corruption is detected."""

import json
from pathlib import Path

import pytest

from benchmarks import fault_injection as module
from benchmarks.fault_injection import FaultInjectionSettings, measure_fault_injection
from benchmarks.faults import corruption
from benchmarks.faults.trial import TrialOutcome
from benchmarks.harness.record import Record
from benchmarks.report.render import render
from hocket.runs.environment import source_digest

CHOSEN = {"methods": ("fdg",), "stages": 2, "count": 3, "seed": 4}
FILES = {"flips": 40, "truncations": 10, "packets": 200}


def test_a_measurement_that_was_interrupted_goes_on(monkeypatch, tmp_path):
    """The first of its trials has a violation."""
    tries = []

    def tried(job, folder):
        if len(tries) == 2 and tries.append(None) is None:
            raise KeyboardInterrupt
        tries.append(job)
        told = "process 0 was ended by SIGKILL, process 1 was ended by SIGKILL"
        return TrialOutcome(job, (137, 0), (told, ""), 1, 1, len(tries) != 1, (), 0.5, 1.5, 3)

    monkeypatch.setattr(module, "run_trial", tried)
    out = tmp_path / "record"
    with pytest.raises(KeyboardInterrupt):
        measure_fault_injection(FaultInjectionSettings(out=out, **CHOSEN, **FILES))
    assert not (out / "record.json").exists()
    begun = json.loads(Path(out, "runs/settings.json").read_text())["found"]
    assert begun == json.loads(json.dumps({**CHOSEN, **FILES, "source": source_digest()}))
    measure_fault_injection(FaultInjectionSettings(out=out, **CHOSEN, **FILES))
    assert len(tries) == 4
    rows = Record.read(out).rows
    jobs = [job for job in tries if job is not None]
    assert [row["faults"] for row in rows[:3]] == [str(job.faults[0]) for job in jobs]
    assert "its final weights differ from those without faults" in rows[0]["broken"]
    assert (out / "runs" / "0000").exists()
    files = {row["row"]: (row["tried"], row["refused"]) for row in rows[3:]}
    assert files == {
        corruption.FLIPPED: (40, 40),
        corruption.TRUNCATED: (10, 10),
        corruption.FORGED: (11, 11),
        corruption.PACKET: (200, 200),
    }
    render(out)
    shown = (out / "README.md").read_text()
    assert "| kill | is started again | 1 | 0 |" in shown
    assert "| packet with another bit | refuses it | 200 | 200 | - | - | - | - |" in shown


def test_damage_that_is_not_refused_is_counted(monkeypatch, tmp_path):
    """Without checksums, little corruption is detected; without checks, code is executed."""
    monkeypatch.setattr(
        "hocket.transport.processes.message.MessageReader._check_tensors", lambda *_: None
    )
    monkeypatch.setattr(corruption, "open_checkpoint", lambda *_: None)
    files = corruption.corrupt_checkpoints(tmp_path, 5, 5, 0)
    assert [row["refused"] for row in files] == [0, 0, 0]
    (row,) = corruption.corrupt_packets(100, 0)
    assert 20 < row["refused"] < 80
