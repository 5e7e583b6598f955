"""Cuts by speed take turns with equal cuts while one of two processes is slower."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.harness.record import Record
from benchmarks.harness.slowed import slowed
from benchmarks.report.render import record_table
from benchmarks.unequal import UnequalSettings, measure_unequal
from hocket.errors import OptionError
from hocket.partition.costs.profile import LayerCost


@pytest.mark.usefixtures("row_server")
def test_the_record_compares_both_cuts_of_every_method(tmp_path, monkeypatch, capsys):
    def profile(layers, sample):
        return {name: LayerCost(1.0, 2.0, 8, kept_bytes=0, weight_bytes=8) for name in layers}

    monkeypatch.setattr("hocket.partition.cutting.profile", profile)
    small = {"network": "mlp:hidden=[8,8,8,8,8]", "shape": (8,), "channels_last": False}
    given = {"out": tmp_path, "methods": ["fdg"], "batch": 8, "repetitions": 2}
    measure_unequal(UnequalSettings(**small, **given, seconds=0.05))
    record = Record.read(tmp_path)
    plain, even, by_speed = record.rows
    assert [row["cuts"] for row in record.rows] == [[], ["hidden2.1"], ["hidden3.1"]]
    assert by_speed["gain"] == pytest.approx(even["slowed_s"] / by_speed["slowed_s"])
    assert by_speed["predicted_gain"] > 0
    assert (plain["predicted_s"], "gain" in even) == (None, False)
    assert all(0 < row["min_s"] <= row["slowed_s"] <= row["max_s"] for row in record.rows)
    assert "| fdg, cuts by speed |" in record_table(record)
    assert "bp: " in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"speed is 1.5; use a number in \(0, 1\)"):
        UnequalSettings(speed=1.5)


def test_a_slowed_process_runs_for_its_part_of_the_time_and_continues():
    def state_and_seconds():
        words = Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[11]) / os.sysconf("SC_CLK_TCK")

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            begin_s, (_, before_s) = time.perf_counter(), state_and_seconds()
            with slowed(busy.pid, 0.25):
                time.sleep(1.0)
            passed_s = time.perf_counter() - begin_s
            state, after_s = state_and_seconds()
            assert state == "R"
            assert after_s - before_s < 0.4 * passed_s
        finally:
            busy.kill()
