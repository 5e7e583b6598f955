"""DDG: all stages run their backwards at once, each with the gradient of an older batch.

Reference: Huo, Gu, Yang, Huang, ICML 2018, arXiv 1804.10574, algorithm 1. Plain version:
``tests/reference/ddg.py``. A gradient takes one tick per edge, an activation none, so the
forward passes all stages within a tick.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(DDG(), stages=3, batches=3), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0 U0
   1 | F1          | F1 B0 U0    | F1 B1 U1
   2 | F2 B0 U0    | F2 B1 U1    | F2 B2 U2
   3 | B1 U1       | B2 U2       |
   4 | B2 U2       |             |
"""

from functools import partial

from hocket.methods.method import EpochEnd, Linearize, Method, Order, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 1804.10574", Delayed)
def DDG(
    *,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    linearize: Linearize = "stash",
    order: Order = "forward-first",
    forward_delay: int = 0,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "ddg",
) -> Method:
    """Build decoupled parallel back-propagation with delayed gradients.

    Options: see `Method`.

    Raises:
        OptionError: An option is out of range.

    >>> [DDG().staleness(stage, stages=4) for stage in range(4)]
    [3.0, 2.0, 1.0, 0.0]
    """


PRESETS = {"ddg": DDG, "ddg-official": partial(DDG, linearize="live", name="ddg-official")}
