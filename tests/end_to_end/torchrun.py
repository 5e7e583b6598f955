"""Scripts that torchrun starts in two processes on this machine."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST_PATH = os.pathsep.join(map(str, [ROOT / "src", ROOT / "tests", ROOT]))
"""Of programs that import the tests."""


def run_under_torchrun(folder: Path, *words: str) -> tuple[int, str]:
    """Run torchrun with these words in a folder; return the exit code and standard error."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", *words),
        ],
        check=False,
        env=os.environ
        | {"PYTHONPATH": TEST_PATH, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        timeout=500,
    )
    return ended.returncode, ended.stderr
