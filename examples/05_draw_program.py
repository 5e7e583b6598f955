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

# It prints:
#
#   bp: 6 ticks, 18 busy ticks of stages, locks: forward, backward, update
#   tick | stage 0     | stage 1     | stage 2
#      0 | F0 B0 U0    | F0 B0 U0    | F0 B0 U0
#      1 | F1 B1 U1    | F1 B1 U1    | F1 B1 U1
#      2 | F2 B2 U2    | F2 B2 U2    | F2 B2 U2
#      3 | F3 B3 U3    | F3 B3 U3    | F3 B3 U3
#      4 | F4 B4 U4    | F4 B4 U4    | F4 B4 U4
#      5 | F5 B5 U5    | F5 B5 U5    | F5 B5 U5
#
#   ddg: 8 ticks, 21 busy ticks of stages, locks: forward
#   tick | stage 0     | stage 1     | stage 2
#      0 | F0          | F0          | F0 B0 U0
#      1 | F1          | F1 B0 U0    | F1 B1 U1
#      2 | F2 B0 U0    | F2 B1 U1    | F2 B2 U2
#      3 | F3 B1 U1    | F3 B2 U2    | F3 B3 U3
#      4 | F4 B2 U2    | F4 B3 U3    | F4 B4 U4
#      5 | F5 B3 U3    | F5 B4 U4    | F5 B5 U5
#      6 | B4 U4       | B5 U5       |
#      7 | B5 U5       |             |
#
#   fdg: 10 ticks, 24 busy ticks of stages, locks: none
#   tick | stage 0     | stage 1     | stage 2
#      0 | F0          |             |
#      1 | F1          | F0          |
#      2 | F2          | F1          | F0 B0 U0
#      3 | F3          | B0 U0 F2    | F1 B1 U1
#      4 | B0 U0 F4    | B1 U1 F3    | F2 B2 U2
#      5 | B1 U1 F5    | B2 U2 F4    | F3 B3 U3
#      6 | B2 U2       | B3 U3 F5    | F4 B4 U4
#      7 | B3 U3       | B4 U4       | F5 B5 U5
#      8 | B4 U4       | B5 U5       |
#      9 | B5 U5       |             |
