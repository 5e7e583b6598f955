"""GPipe: all forwards of a group of batches, then all their backwards, then one update.

Reference: Huang et al., NeurIPS 2019, arXiv 1811.06965, figure 2. Plain version:
``tests/reference/flushed.py``. The M micro-batches of the paper are M batches of the loader.
Nothing enters before the update with the group before: gradients equal back-propagation with M
accumulated batches, to the bit, and stages are idle meanwhile, for a fraction (K-1)/(M+K-1) of
the time on K equal stages.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(GPipe(accumulate=2), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          |             |
   1 | F1          | F0          |
   2 |             | F1          | F0
   3 |             |             | F1 B0
   4 |             | B0          | B1 U1
   5 | B0          | B1 U1       |
   6 | B1 U1       |             |
   7 | F2          |             |
   8 | F3          | F2          |
   9 |             | F3          | F2
  10 |             |             | F3 B2
  11 |             | B2          | B3 U3
  12 | B2          | B3 U3       |
  13 | B3 U3       |             |

The authors back-propagate a group from its last batch to its first; here it is from the first
to the last, so that gradients are added up in the order of back-propagation.
"""

from hocket.methods.method import EpochEnd, Method, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 1811.06965", Delayed, forward_delay=1, backward_delay=1, flush="all-forward")
def GPipe(
    *,
    accumulate: int = 4,
    reduce: Reduce = "mean",
    recompute: bool = False,
    epoch_end: EpochEnd = "carry",
    name: str = "gpipe",
) -> Method:
    """Build the pipeline that forwards a whole group of batches before its first backward.

    Other options: see `Method`.

    Args:
        accumulate: Number of batches in a group, with one update (M).
        recompute: Keep inputs instead of graphs, and forward again before each backward, which
            the paper calls re-materialization.
        epoch_end: ``carry`` a group that is not full into the next epoch, or ``drain`` it.

    Raises:
        OptionError: An option is out of range.

    >>> GPipe().memory(0, stages=4)
    MemoryCount(graphs=4, inputs=4, versions=1)
    """


PRESETS = {"gpipe": GPipe}
