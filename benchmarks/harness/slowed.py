"""Processes that run for a part of the time only, like processes of a slower machine.

A quota of a control group, or a competitor on the same core, would take nothing from a process
that waits, and let it catch up. Signals stop all threads of a process whatever it does.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

PERIOD_S = 0.01
"""Time in which a process runs and is stopped once: short compared with a step."""


@contextmanager
def slowed(process: int, speed: float) -> Iterator[None]:
    """Context manager in which a process runs for this part of the time; with 1 always."""
    done = Event()

    def stop_and_continue() -> None:
        begin_s = time.perf_counter()
        ran_s = 0.0
        while not done.is_set():
            continued_s = time.perf_counter()
            time.sleep(PERIOD_S * speed)
            os.kill(process, signal.SIGSTOP)
            ran_s += time.perf_counter() - continued_s
            # Until it has run for its part of all the time, so that late signals add up to 0.
            time.sleep(max(0.0, begin_s + ran_s / speed - time.perf_counter()))
            os.kill(process, signal.SIGCONT)

    thread = Thread(target=stop_and_continue, daemon=True)
    if speed < 1:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if speed < 1:
            thread.join()
