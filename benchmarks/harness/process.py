"""A process of its own for one piece of a measurement, with the same code as this one."""

import os
import subprocess
import sys
from pathlib import Path

import benchmarks
import hocket
from hocket.errors import HocketError


def in_own_process(module: str, *words: str, threads: int) -> str:
    """The last line that a module of this package prints when it is run.

    Args:
        module: Its full name.
        words: Its arguments.
        threads: How many threads libraries may start there.

    Raises:
        HocketError: The process failed; with what it wrote about it.
    """
    # The folders these packages were imported from, also where they are not installed.
    homes = [str(Path(str(p.__file__)).resolve().parents[1]) for p in (hocket, benchmarks)]
    paths = [*homes, *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)},
    )
    if ended.returncode or not ended.stdout.strip():
        reason = ended.stderr.strip() or f"it ended with {ended.returncode} and said nothing"
        raise HocketError(f"the process of {module} failed: {reason}")
    return ended.stdout.splitlines()[-1]
