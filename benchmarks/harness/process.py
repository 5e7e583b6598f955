"""Modules of this package in new processes, with the same code as this process."""

import os
import subprocess
import sys
from pathlib import Path

import benchmarks
import hocket
from hocket.errors import HocketError


def build_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process with the code of this process, and these threads."""
    # The folders these packages were imported from, for packages that are not installed.
    folders = [str(Path(str(p.__file__)).resolve().parents[1]) for p in (hocket, benchmarks)]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
    }


def run_module(module: str, *words: str, threads: int) -> str:
    """Run a module of this package in a new process and return the last line that it prints.

    Args:
        module: Its full name.
        words: Its arguments.
        threads: Number of threads of OpenMP there.

    Raises:
        HocketError: The process failed; the message has what it wrote to standard error.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        capture_output=True,
        text=True,
        check=False,
        env=build_environment(threads),
    )
    if ended.returncode or not ended.stdout.strip():
        reason = ended.stderr.strip() or f"it ended with {ended.returncode} and wrote nothing"
        raise HocketError(f"the process of {module} failed: {reason}")
    return ended.stdout.splitlines()[-1]
