"""The share of the machine that other programs use."""

import time

import pytest

from benchmarks.harness import load as module
from benchmarks.harness.load import MachineLoad, read_busy_s, wait_until_quiet


@pytest.fixture
def stat(monkeypatch, tmp_path):
    """Replace the counts of the system: a machine with two cores and 100 ticks a second."""
    file = tmp_path / "stat"
    monkeypatch.setattr(module, "STAT", file)
    monkeypatch.setattr(module.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    return file


def test_idle_and_waiting_cores_are_not_busy_and_without_counts_others_are_not_known(stat):
    assert not stat.exists()
    assert read_busy_s() is None
    assert MachineLoad().foreign() is None
    stat.write_text("cpu  100 20 3 9000 800 40 5 60 0 0\ncpu0 1 2 3\n")
    assert read_busy_s() == pytest.approx(2.28)


def test_what_we_and_our_helpers_do_is_not_foreign(stat, monkeypatch):
    clock = {"wall": 50.0, "own": 7.0}
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(module.time, "process_time", lambda: clock["own"])
    stat.write_text("cpu  1000 0 0 0 0 0 0 0 0 0\n")
    load = MachineLoad()
    stat.write_text("cpu  1500 0 0 0 0 0 0 0 0 0\n")
    clock |= {"wall": 54.0, "own": 8.0}
    assert load.foreign(own_processes_s=2.0) == pytest.approx((5 - 1 - 2) / 4 / 2)
    assert load.foreign(own_processes_s=9.0) == 0.0


def test_waiting_ends_when_others_do_or_with_patience(stat, monkeypatch):
    shares = iter([0.5, 0.3, 0.02, 0.5])
    monkeypatch.setattr(MachineLoad, "foreign", lambda _: next(shares))
    wait_until_quiet(0.04, 60, interval_s=0.001)
    assert next(shares) == 0.5
    monkeypatch.setattr(MachineLoad, "foreign", lambda _: 0.5)
    start_s = time.perf_counter()
    wait_until_quiet(0.04, 0.05, interval_s=0.001)
    assert 0.05 <= time.perf_counter() - start_s < 60
