"""What other programs take of the machine while something is measured."""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")


class Load:
    """The load of a stretch of time, which begins when this is made."""

    def __init__(self) -> None:
        self._busy_s = busy_s()
        self._own_s = time.process_time()
        self._start_s = time.perf_counter()

    def foreign(self, helpers_s: float = 0.0) -> float | None:
        """Share of the machine that was used by others; None where the system does not tell.

        Args:
            helpers_s: Processor time of other processes that are none of the others.
        """
        now_s = busy_s()
        if self._busy_s is None or now_s is None:
            return None
        own_s = time.process_time() - self._own_s + helpers_s
        passed_s = time.perf_counter() - self._start_s
        share = (now_s - self._busy_s - own_s) / passed_s / (os.cpu_count() or 1)
        return max(0.0, share)  # the system counts in ticks, and so may miss a little


def await_quiet(foreign: float, patience_s: float, *, look_s: float = 1.0) -> None:
    """Sleep until others leave the machine alone, or patience ends.

    Args:
        foreign: The share of the machine that they may use.
        patience_s: How long to wait at most.
        look_s: How long to look at a time.
    """
    end_s = time.perf_counter() + patience_s
    while time.perf_counter() < end_s:
        load = Load()
        time.sleep(look_s)
        if (load.foreign() or 0.0) <= foreign:
            return


def busy_s() -> float | None:
    """Seconds of all cores together that were not idle since the machine started."""
    if not STAT.is_file():
        return None
    # user nice system idle iowait irq softirq steal; steal is what other machines took.
    words = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
