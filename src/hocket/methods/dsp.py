"""DSP: the schedule of FDG, with inputs kept instead of graphs and recomputed in the backward.

Reference: Xu, Huo, Huang, Diversely stale parameters, CVPR 2020, arXiv 1909.02625. Plain
version: ``tests/reference/dsp.py``. A stage's own Jacobian is taken at its current weights; its
input and the gradient it receives are old.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(DSP(), stages=3, batches=4), stages=3))
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

from hocket.methods.method import EpochEnd, Method, Order
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


def DSP(
    *,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    order: Order = "backward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "dsp",
) -> Method:
    """Build diversely stale parameters.

    Options: see `Method`.

    Raises:
        OptionError: An option is out of range.

    >>> [DSP().staleness(stage, stages=4) for stage in range(4)]
    [5.0, 3.0, 1.0, 0.0]
    """
    return Method(
        name=name,
        paper="arXiv 1909.02625",
        signal=Delayed(),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        order=order,
        linearize="recompute",
        accumulate=accumulate,
        reduce=reduce,
        epoch_end=epoch_end,
    )


PRESETS = {"dsp": DSP}
