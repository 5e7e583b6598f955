"""PACI: PipeDream's order at the current weights, with an update after several backwards.

Reference: arXiv 2606.07881. Plain version: ``tests/reference/pipedream.py``. Nothing is
stashed: a backward meets the activations of its forward and the current weights, which fewer
updates have changed because each stage updates after M backwards.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(PACI(accumulate=2), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0
   1 | F1          | F1 B0       | F1 B1 U1
   2 | F2 B0       | F2 B1 U1    | F2 B2
   3 | F3 B1 U1    | F3 B2       | F3 B3 U3
   4 | B2          | B3 U3       |
   5 | B3 U3       |             |
"""

from hocket.methods.method import EpochEnd, Linearize, Method, Order, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 2606.07881", Delayed)
def PACI(
    *,
    accumulate: int = 8,
    reduce: Reduce = "mean",
    linearize: Linearize = "live",
    order: Order = "forward-first",
    forward_delay: int = 0,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "paci",
) -> Method:
    """Build a pipeline at the current weights, with accumulated gradients.

    Other options: see `Method`.

    Args:
        linearize: Weights that a late gradient is applied at: ``live``, or ``recompute`` for
            the paper's mode that keeps inputs instead of graphs.

    Raises:
        OptionError: An option is out of range.

    >>> [PACI().staleness(stage, stages=4) for stage in range(4)]
    [0.375, 0.25, 0.125, 0.0]
    """


PRESETS = {"paci": PACI}
