"""Processes of rows that import nothing for themselves, and studies in this process."""

import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest

from benchmarks.harness.workers import PRELOADED
from unit.lab.studies.in_process import run_here


@pytest.fixture(scope="session")
def row_server():
    """Start the server; without it each process imports the measurements for itself."""
    modules = ["benchmarks.peers.rows", "unit.benchmarks.small_workloads"]
    multiprocessing.set_forkserver_preload([*PRELOADED, *modules])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


@pytest.fixture
def studies_here(monkeypatch):
    """Run the trainings of studies in this process, and draw nothing of them."""
    run_here(monkeypatch, draw=False)
