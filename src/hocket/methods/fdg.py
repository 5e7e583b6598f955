"""FDG: no locks; in every tick all stages work, on different batches.

Reference: Zhuang, Wang, Liu, Lin, TNNLS 33(10), arXiv 1906.09108, algorithm 1. Plain version:
``tests/reference/fdg.py``. Every packet takes one tick per edge. The last stage computes
forward and backward of a batch in one tick.

>>> from hocket.program import format_program, unroll
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
"""

from functools import partial

from hocket.methods.method import EpochEnd, Linearize, Method, Order, preset
from hocket.signals import Delayed


@preset("arXiv 1906.09108", Delayed)
def FDG(
    *,
    shrink: float = 1.0,
    linearize: Linearize = "stash",
    order: Order = "backward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "fdg",
) -> Method:
    """Build fully decoupled training with delayed gradients and gradient shrinking.

    Other options: see `Method`.

    Args:
        shrink: Factor in (0, 1] on a gradient at each edge that it crosses (beta).
        order: Work that a stage does first in a tick in which it has both kinds; the paper's
            backward-first saves one update of staleness.

    Raises:
        OptionError: An option is out of range.

    >>> [FDG().staleness(stage, stages=4) for stage in range(4)]
    [5.0, 3.0, 1.0, 0.0]
    """


PRESETS = {"fdg": FDG, "fdg-official": partial(FDG, linearize="live", name="fdg-official")}
