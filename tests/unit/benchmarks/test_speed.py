"""Rows take turns; ratios are to the base in the same round."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import speed as module
from benchmarks.harness.record import Record
from benchmarks.harness.repetition import (
    NoisePolicy,
    Repetition,
    Turn,
    summarize_turns,
    take_turn,
)
from benchmarks.harness.slowed import slowed
from benchmarks.report.tables_speed import speed_table
from benchmarks.speed import SpeedSettings, measure_speed
from unit.benchmarks.small_workloads import even_profile

pytestmark = pytest.mark.usefixtures("row_server")
QUIET = NoisePolicy(foreign=0.04, retries=2, patience_s=0)


def took(wall_s, foreign=0.0):
    return Repetition(1, wall_s, cpu_s=2 * wall_s, foreign=foreign, other_cpu_s=wall_s / 2)


@pytest.mark.parametrize(
    ("shares", "taken", "dropped"),
    [
        ((0.01,), 0.01, 0),
        ((None,), None, 0),
        ((0.3, 0.04), 0.04, 1),
        ((0.3, 0.2, 0.5), 0.2, 2),
    ],
)
def test_a_disturbed_turn_is_repeated_but_not_for_ever(shares, taken, dropped):
    replay = iter(shares)
    found = take_turn(lambda: took(1.0, next(replay)), QUIET)
    assert (found.counted.foreign, found.dropped) == (taken, dropped)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Let the measurement repeat no turn, and wait for nobody."""
    monkeypatch.setattr(module, "QUIET", NoisePolicy(foreign=0.04, retries=0, patience_s=0))


def test_ratios_are_taken_round_by_round():
    base = [Turn(took(wall_s), 0) for wall_s in (1.0, 2.0, 4.0)]
    row = [Turn(took(1.0), 0), Turn(took(1.0, 0.5), 2), Turn(took(4.0), 1)]
    found = summarize_turns(row, base, samples=20, base_samples=10, policy=QUIET)
    assert found["ratios"] == pytest.approx([2.0, 4.0, 2.0])
    assert (found["ratio"], found["ratio_min"], found["ratio_max"]) == (2.0, 2.0, 4.0)
    assert found["samples_per_s"] == 20.0
    assert found["cpu_s_per_sample"] == pytest.approx(0.1)
    assert found["cpu_ratio"] == pytest.approx(0.5)
    assert found["other_cpu"] == 0.25
    assert (found["disturbed"], found["dropped"]) == (1, 3)


def measure(out, **options):
    settings = SpeedSettings(
        **{"out": out, "network": "mlp", "shape": (8,), "channels_last": False, "batch": 8}
        | {"repetitions": 2, "steps": 1}
        | options
    )
    measure_speed(settings)
    return Record.read(out)


def test_the_record_has_every_row_and_the_base(tmp_path, capsys):
    rows = ["ddp", "1f1b:microbatches=2", "ddp"]
    record = measure(tmp_path, rows=rows, at_once=1)
    assert [row["row"] for row in record.rows] == ["bp", "ddp", "1f1b microbatches=2"]
    base, shared, piped = record.rows
    assert base["ratios"] == [1.0, 1.0]
    assert (base["processes"], shared["processes"]) == (1, 2)
    assert piped["choices"]["microbatches"] == 2
    assert all(len(row["ratios"]) == len(row["foreign"]) == 2 for row in record.rows)
    assert record.settings["rows"] == rows
    assert "1f1b microbatches=2: " in capsys.readouterr().err


def test_turns_are_whole_periods_whose_samples_all_count(tmp_path, monkeypatch):
    def repeat_slower(_, timed):  # the more steps, the longer each of them
        return Repetition(timed.number, timed.number**2, cpu_s=1.0, foreign=0.0)

    monkeypatch.setattr(module, "run_repetition", repeat_slower)
    record = measure(tmp_path, rows=["adl:accumulate=4", "diloco:every=3"], steps=2)
    assert [8 / row["samples_per_s"] for row in record.rows] == pytest.approx([2, 4, 3])
    assert "| replicas=2 |" in speed_table(record)


def test_rows_are_compared_with_the_limit_beside_them_and_tell_what_their_time_went_to(
    tmp_path,
):
    rows = ["independent", "ddp", "fdg"]
    base, limit, beside, later = measure(tmp_path, rows=rows, at_once=2, steps=3).rows
    assert limit["of_limit"] == 1.0
    shares = [mine / most for mine, most in zip(beside["ratios"], limit["ratios"], strict=True)]
    assert beside["of_limit"] == pytest.approx(sum(shares) / 2)
    assert "of_limit" not in later
    assert base["of_limit"] == pytest.approx(sum(1 / most for most in limit["ratios"]) / 2)
    assert 0 <= beside["other_cpu"] < 1
    assert (base["waiting"], base["communication"]) == ([], [])
    for waits, sends in zip(later["waiting"], later["communication"], strict=True):
        assert 0 <= waits < 1
        assert 0 <= sends < 1
    assert len(later["waiting"]) == 2
    assert max(later["communication"]) > 0


def test_cuts_by_speed_are_compared_with_equal_ones_while_a_process_is_slowed(
    tmp_path, monkeypatch
):
    slowed_to = []

    def slow(process, speed):
        slowed_to.append(speed)
        return slowed(process, speed)

    monkeypatch.setattr("hocket.partition.cutting.profile", even_profile)
    monkeypatch.setattr(module, "slowed", slow)
    even, by_speed = 'fdg:speeds="1,1"', 'fdg:speeds="1,0.5"'
    network = "mlp:hidden=[8,8,8,8,8]"
    record = measure(tmp_path, network=network, base=even, rows=["bp", by_speed], slow=0.5)
    first, plain, second = record.rows
    assert first["choices"]["cuts"] == ["hidden2.1"]
    assert second["choices"]["cuts"] == ["hidden3.1"]
    assert (first["ratios"], plain["processes"]) == ([1.0, 1.0], 1)
    assert sorted(slowed_to) == [0.5] * 4 + [1.0] * 2
    assert "beside fdg:speeds" in speed_table(record)
    assert "has a speed of 0.5" in speed_table(record)


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
