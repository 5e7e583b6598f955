"""ADL: the schedule of FDG with M gradients per update, which divides the staleness by M.

Reference: Zhuang, Toh, Lin, arXiv 2012.03747; Zhuang et al., ICML 2021. Plain version:
``tests/reference/adl.py``. Every stage counts its own gradients, here two per update.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(ADL(accumulate=2), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          |             |
   1 | F1          | F0          |
   2 | F2          | F1          | F0 B0
   3 | F3          | B0 F2       | F1 B1 U1
   4 | B0          | B1 U1 F3    | F2 B2
   5 | B1 U1       | B2          | F3 B3 U3
   6 | B2          | B3 U3       |
   7 | B3 U3       |             |
"""

from functools import partial

from hocket.methods.method import EpochEnd, Hold, Linearize, Method, Order, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 2012.03747", Delayed)
def ADL(
    *,
    accumulate: int = 4,
    reduce: Reduce = "mean",
    shrink: float = 1.0,
    linearize: Linearize = "stash",
    hold: Hold = "newest",
    order: Order = "backward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "adl",
) -> Method:
    """Build accumulated decoupled learning.

    Other options: see `Method`.

    Args:
        shrink: Factor in (0, 1] on a gradient at each edge that it crosses (beta of FDG).

    Raises:
        OptionError: An option is out of range.

    >>> [ADL().staleness(stage, stages=4) for stage in range(4)]
    [1.25, 0.75, 0.25, 0.0]
    """


PRESETS = {
    "adl": ADL,
    "adl-official": partial(ADL, reduce="sum", linearize="live", name="adl-official"),
}
