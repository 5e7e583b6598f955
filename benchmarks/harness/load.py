"""The share of the machine that other programs use during a measurement."""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")


class MachineLoad:
    """Load of the machine since this object was created."""

    def __init__(self) -> None:
        self._busy_s = read_busy_s()
        self._own_s = time.process_time()
        self._start_s = time.perf_counter()

    def foreign(self, own_processes_s: float = 0.0) -> float | None:
        """Return the share of the machine that other programs used; None if it is not known.

        Args:
            own_processes_s: Processor time of further processes of the measurement.
        """
        now_s = read_busy_s()
        if self._busy_s is None or now_s is None:
            return None
        own_s = time.process_time() - self._own_s + own_processes_s
        passed_s = time.perf_counter() - self._start_s
        share = (now_s - self._busy_s - own_s) / passed_s / (os.cpu_count() or 1)
        return max(0.0, share)  # the system counts in ticks: its counts may lag


def wait_until_quiet(foreign: float, patience_s: float, *, interval_s: float = 1.0) -> None:
    """Sleep until other programs use at most this share, or for the longest time allowed."""
    end_s = time.perf_counter() + patience_s
    while time.perf_counter() < end_s:
        load = MachineLoad()
        time.sleep(interval_s)
        if (load.foreign() or 0.0) <= foreign:
            return


def read_busy_s() -> float | None:
    """Return the busy seconds of all cores together since the machine started, if it counts."""
    if not STAT.is_file():
        return None
    # user nice system idle iowait irq softirq steal; other virtual machines used "steal".
    words = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
