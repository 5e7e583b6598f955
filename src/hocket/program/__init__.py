"""Programs: a method on K stages as ticks of actions, without tensors.

FDG on three stages. Every packet takes one tick, to the next stage as to the stage before, so
that batch 0 returns to stage 0 in tick 4:

>>> from hocket.methods import FDG
>>> print(format_program(unroll(FDG(), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          |             |
   1 | F1          | F0          |
   2 | F2          | F1          | F0 B0 U0
   3 | F3          | B0 U0 F2    | F1 B1 U1
   4 | B0 U0       | B1 U1 F3    | F2 B2 U2
   5 | B1 U1       | B2 U2       | F3 B3 U3
   6 | B2 U2       | B3 U3       |
   7 | B3 U3       |             |

``F2.5`` means that stage 2 forwards batch 5, ``F2.5@3`` that it does so with the weights that
had seen 3 updates, and else with its newest; ``B`` that it back-propagates it, ``U`` that it
updates its weights with the gradients accumulated up to that batch, ``T`` that its signal
learns from the target that came back for it. Stages and batches are counted from 0.

Batch b enters at tick s. Stage k forwards it at ``s + k*df`` and back-propagates it
``(K-1-k)(df + db)`` ticks later, where df and db are the delays of an edge.
"""

from hocket.program.action import Action as Action
from hocket.program.action import Tick as Tick
from hocket.program.action import dependency as dependency
from hocket.program.check import check_program as check_program
from hocket.program.program import Program as Program
from hocket.program.program import drain as drain
from hocket.program.program import enter as enter
from hocket.program.program import unroll as unroll
from hocket.program.text import format_program as format_program
from hocket.program.text import parse_program as parse_program
