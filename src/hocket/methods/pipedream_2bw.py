"""PipeDream-2BW: two versions of the weights, and a delay of one update at every stage.

Reference: Narayanan et al., ICML 2021, arXiv 2006.09503. Plain version:
``tests/reference/held.py``. The batches of a group of M are forwarded and back-propagated with
the weights before the last update, at all stages the same:
W(t+1) = W(t) - lr * grad f(W(t-1); group t), the mean over M batches.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(PipeDream2BW(accumulate=2), stages=3, batches=6), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0@0        | F0@0        | F0@0 B0
   1 | F1@0        | F1@0 B0     | F1@0 B1 U1
   2 | F2@0 B0     | F2@0 B1 U1  | F2@0 B2
   3 | F3@0 B1 U1  | F3@0 B2     | F3@0 B3 U3
   4 | F4@1 B2     | F4@1 B3 U3  | F4@1 B4
   5 | F5@1 B3 U3  | F5@1 B4     | F5@1 B5 U5
   6 | B4          | B5 U5       |
   7 | B5 U5       |             |
"""

from hocket.methods.method import EpochEnd, Method, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 2006.09503", Delayed, hold="double")
def PipeDream2BW(
    *,
    accumulate: int = 4,
    reduce: Reduce = "mean",
    forward_delay: int = 0,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "pipedream-2bw",
) -> Method:
    """Build PipeDream's pipeline with double-buffered weights.

    Other options: see `Method`.

    Args:
        accumulate: Number of gradients per update (M); at least K-1 on K stages.

    Raises:
        OptionError: An option is out of range.

    >>> [PipeDream2BW().staleness(stage, stages=4) for stage in range(4)]
    [1.0, 1.0, 1.0, 1.0]
    """


PRESETS = {"pipedream-2bw": PipeDream2BW}
