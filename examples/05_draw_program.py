"""Print and draw the programs of three methods.

What to learn: `unroll` turns a method into ticks of actions, without tensors. F is a forward,
B a backward, U an update; the number is that of the batch. In BP one stage works at a time,
in DDG the backwards run at the same time, in FDG every stage is busy in every tick.
"""

import sys
from pathlib import Path

import hocket
from hocket import draw_program, format_program

STAGES, BATCHES = 3, 6
# Folder for the pictures, given on the command line; without one none are drawn.
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None

for method in (hocket.BP(), hocket.DDG(), hocket.FDG()):
    ticks = list(hocket.unroll(method, STAGES, BATCHES))
    busy = sum(len({action.stage for action in tick}) for tick in ticks)
    locks = ", ".join(method.locks()) or "none"
    print(f"{method.name}: {len(ticks)} ticks, {busy} busy ticks of stages, locks: {locks}")
    print(format_program(ticks, STAGES), end="\n\n")
    if folder is not None:
        file = folder / f"{method.name}.svg"
        draw_program(ticks, STAGES, f"{method.name} on {STAGES} stages", file)
        print(f"drawn to {file}\n")
