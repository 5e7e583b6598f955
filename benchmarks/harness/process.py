"""New processes with the same code as this process."""

import os
from pathlib import Path

import benchmarks
import hocket


def build_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process with the code of this process, and these threads."""
    # The folders these packages were imported from, for packages that are not installed.
    folders = [str(Path(str(p.__file__)).resolve().parents[1]) for p in (hocket, benchmarks)]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
    }
