"""The processes of a row stay alive, sleep between queries, and report errors."""

import multiprocessing
import time
from pathlib import Path

import pytest

from benchmarks.harness.balance import Balancer
from benchmarks.harness.repetition import TimedSteps, run_repetition
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers.rows import build_baseline
from hocket.errors import HocketError
from unit.benchmarks.small_workloads import Fails, exact, processor_s, stumble

pytestmark = pytest.mark.usefixtures("row_server")
WORK = exact()


def world(row):
    return RowProcesses(row, build_baseline(row, WORK, Balancer(WORK)), WORK, timeout_s=30)


def test_processes_sleep_between_queries():
    with world("ddp") as two:
        run_repetition(two, TimedSteps(1))
        before = two.query(processor_s)
        time.sleep(0.5)
        after = two.query(processor_s)
    assert all(b - a < 0.1 for a, b in zip(before, after, strict=True))


def test_nothing_is_left_when_they_end():
    two = world("independent")
    folder = Path(two._folder.name)
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0  # nobody else may join
    running = [process.pid for process in two._processes]
    two.close()
    assert not folder.exists()
    assert not {child.pid for child in multiprocessing.active_children()} & {*running}


@pytest.mark.parametrize(
    ("silently", "said"),
    [(False, "failed: Trace.*one o"), (True, "failed: it ended with 3")],
)
def test_the_process_that_fails_first_is_named(silently, said):
    with pytest.raises(HocketError, match=f"(?s)process 1 of the row 'odd' {said}"):
        RowProcesses("odd", Fails(silently), WORK, timeout_s=30)


def test_a_query_that_fails_ends_the_processes():
    with (
        pytest.raises(HocketError, match=r"(?s)the row 'ddp' failed: Trace.*no answer"),
        world("ddp") as two,
    ):
        two.query(stumble)
    assert two._processes == []


def test_a_repetition_counts_what_all_processes_worked():
    with world("independent") as two:
        run_repetition(two, TimedSteps(1))
        found = run_repetition(two, TimedSteps(30))
        peaks = two.peak_mib()
    assert len(peaks) == 2
    assert all(0 <= peak < 1000 for peak in peaks)
    assert found.wall_s > 0
    assert 0 < found.cpu_s < 2.5 * found.wall_s
    assert found.foreign is None or 0 <= found.foreign <= 1
