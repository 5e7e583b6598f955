"""Memory that PyTorch allocates for tensors, counted byte by byte.

Unlike the memory of the process it does not depend on what the C library gives back.
"""

import gc
import json
import tempfile
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "hocket step "


@dataclass(frozen=True)
class Allocated:
    """Memory allocated since the trace began, in bytes.

    Attributes:
        held: Memory that is still allocated at the end of a step.
        peak: The most during the step.
    """

    held: int
    peak: int


def trace_allocations(steps: Iterable[object]) -> list[Allocated]:
    """Run an iterable to its end, and return what was allocated in each of its steps.

    Args:
        steps: Each of its items is a step, which ends when the item is given. Its tensors must
            be on the CPU.
    """
    # Run the steps, each under a mark of its own.
    iterator, count = iter(steps), 0
    gc.collect()  # or garbage from before would be freed, and counted, in one of the steps
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        while True:
            with record_function(f"{_MARK}{count}"):
                if next(iterator, iterator) is iterator:
                    break
            count += 1

    # Read the sum of all allocations after each of them, and the times of the steps.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    recorded = [event for event in events if event.get("name") == "[memory]"]
    recorded.sort(key=itemgetter("ts"))
    times = [event["ts"] for event in recorded]
    totals = list(accumulate(event["args"]["Bytes"] for event in recorded))
    marks = {
        int(event["name"].removeprefix(_MARK)): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X" and event["name"].startswith(_MARK)
    }
    # Find what is held at the end of each step, and the most during it.
    found, held = [], 0
    for number in range(count):
        begin, end = marks[number]
        within = totals[bisect_left(times, begin) : bisect_left(times, end)]
        peak = max([held, *within])
        held = within[-1] if within else held
        found.append(Allocated(held, peak))
    return found
