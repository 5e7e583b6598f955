"""PETRA: FDG's schedule, and reversible stages that keep no batch between its two passes.

Reference: Rivaud, Fournier, Pumir, Belilovsky, Eickenberg, Oyallon, ICLR 2025, arXiv
2406.02052, algorithm 1. Plain version: ``tests/reference/petra.py``. A gradient comes with the
activation that it belongs to, from which a stage computes its input, at its current weights. A
stage with a layer that has no inverse keeps its inputs, as in `DSP`.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(PETRA(), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          |             |
   1 | F1          | F0          |
   2 | F2          | F1          | F0 B0 U0
   3 | F3          | F2 B0 U0    | F1 B1 U1
   4 | B0 U0       | F3 B1 U1    | F2 B2 U2
   5 | B1 U1       | B2 U2       | F3 B3 U3
   6 | B2 U2       | B3 U3       |
   7 | B3 U3       |             |
"""

from hocket.methods.method import EpochEnd, Method, Order, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 2406.02052", Delayed, linearize="invert")
def PETRA(
    *,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    order: Order = "forward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "petra",
) -> Method:
    """Build fully decoupled training of reversible stages, which keep no batch.

    Options: see `Method`.

    Raises:
        OptionError: An option is out of range.

    >>> [PETRA().memory(stage, stages=4).inputs for stage in range(4)]
    [1, 1, 1, 1]
    """


PRESETS = {"petra": PETRA}
