"""1F1B with a flush: one forward and one backward in turn, and a drained pipeline per update.

Reference: PipeDream-Flush of Narayanan et al., ICML 2021, arXiv 2006.09503; the early backward
schedule of DAPPLE, Fan et al., PPoPP 2021, arXiv 2007.01045. Plain version:
``tests/reference/flushed.py``. A stage forwards K-1-k batches of a group of M,
then one forward and one backward in turn, and drains the group before the next one enters.
Gradients and idle time are as in GPipe; stage k holds min(K-k, M) batches instead of M.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(OneFOneB(accumulate=3), stages=3, batches=6), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0
   1 | F1          | F1 B0       | F1 B1
   2 | F2 B0       | F2 B1       | F2 B2 U2
   3 | B1          | B2 U2       |
   4 | B2 U2       |             |
   5 | F3          | F3          | F3 B3
   6 | F4          | F4 B3       | F4 B4
   7 | F5 B3       | F5 B4       | F5 B5 U5
   8 | B4          | B5 U5       |
   9 | B5 U5       |             |
"""

from hocket.methods.method import EpochEnd, Method, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 2006.09503", Delayed, forward_delay=0, backward_delay=1, flush="alternate")
def OneFOneB(
    *,
    accumulate: int = 4,
    reduce: Reduce = "mean",
    recompute: bool = False,
    epoch_end: EpochEnd = "carry",
    name: str = "1f1b",
) -> Method:
    """Build the pipeline that alternates forwards and backwards within a group of batches.

    Other options: see `Method`.

    Args:
        accumulate: Number of batches in a group, with one update (M).
        recompute: Keep inputs instead of graphs, and forward again before each backward.
        epoch_end: ``carry`` a group that is not full into the next epoch, or ``drain`` it.

    Raises:
        OptionError: An option is out of range.

    >>> OneFOneB().memory(0, stages=4)
    MemoryCount(graphs=4, inputs=4, versions=1)
    """


PRESETS = {"1f1b": OneFOneB}
