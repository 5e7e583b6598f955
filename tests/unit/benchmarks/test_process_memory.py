"""A process holds only the memory that it uses, once free memory is returned."""

import subprocess
import sys

import pytest

from benchmarks.harness.process import build_environment
from hocket.runs.peak_memory import STATUS

HELD_MIB = 80
PROGRAM = """
from benchmarks.harness.process_memory import held_mib, release_free_memory
release_free_memory()
before = held_mib()
held = [b"x" * 2**21 for _ in range(40)]
print(held_mib() - before)
del held
print(held_mib() - before)
"""
GREEDY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@pytest.mark.skipif(not STATUS.is_file(), reason="only Linux tells what a process holds")
@pytest.mark.parametrize("settings", [{}, GREEDY], ids=["as installed", "greedy"])
def test_what_was_freed_is_given_back_whatever_the_environment_says(settings):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=build_environment(threads=1) | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    held, left = map(float, done.stdout.split())
    assert held == pytest.approx(HELD_MIB, rel=0.05)
    assert left < 0.1 * HELD_MIB
