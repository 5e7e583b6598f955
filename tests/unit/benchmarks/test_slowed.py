"""A process that is slowed runs for a part of the time, whatever it does."""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness.slowed import slowed


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
