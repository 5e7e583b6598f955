"""No program outlives the run that has started it, and none is waited for without end."""

import signal
import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.faults.processes import all_processes
from contract.processes import wait_until
from hocket_lab.studies import pool as module
from hocket_lab.studies.pool import Pool, RunningRun


@pytest.fixture
def start(tmp_path):
    """Function that starts a shell program as a run of a pool."""

    def start(pool, program):
        process = subprocess.Popen(
            ["bash", "-c", program], cwd=tmp_path, start_new_session=True
        )
        pool.running.append(RunningRun(SimpleNamespace(name="a"), tmp_path, process, 0))
        wait_until((tmp_path / "ready").exists)
        return process.pid

    return start


def programs_of(session):
    return [pid for pid, state, _, each in all_processes() if each == session and state != "Z"]


def test_programs_of_a_run_end_with_it(start, tmp_path):
    with Pool(tmp_path) as pool:
        session = start(pool, "sleep 1000 & touch ready; exit 3")
        wait_until(lambda: [result.state for _, result in pool.ended()] == ["failed"])
        wait_until(lambda: not programs_of(session))


def test_a_run_that_is_suspended_stops_in_good_order(start, tmp_path):
    program = "trap 'touch saved; exit' TERM; touch ready; while :; do sleep 0.05; done"
    with Pool(tmp_path) as pool:
        pid = start(pool, program)
        pool.running[0].process.send_signal(signal.SIGSTOP)
    assert (tmp_path / "saved").exists()
    assert not programs_of(pid)


def test_a_run_that_hangs_is_killed_and_named(start, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.2)
    program = "trap '' TERM; touch ready; while :; do sleep 0.05; done"
    with (
        pytest.warns(UserWarning, match="run a has not stopped within 0.2 s"),
        Pool(tmp_path) as pool,
    ):
        session = start(pool, program)
    assert not programs_of(session)
