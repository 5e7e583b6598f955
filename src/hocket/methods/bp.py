"""Back-propagation, cut into stages: the baseline of every method.

Reference: Rumelhart, Hinton, Williams, Nature 323 (1986). Plain version:
``tests/reference/bp.py``. No packet takes a tick, so every stage waits for all the others in
every tick: the forward of batch b passes all stages, then its backward.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(BP(), stages=3, batches=3), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0 B0 U0    | F0 B0 U0    | F0 B0 U0
   1 | F1 B1 U1    | F1 B1 U1    | F1 B1 U1
   2 | F2 B2 U2    | F2 B2 U2    | F2 B2 U2
"""

from hocket.methods.method import EpochEnd, Method, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset(
    "Rumelhart, Hinton, Williams, Nature 323 (1986)", Delayed, forward_delay=0, backward_delay=0
)
def BP(
    *,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    epoch_end: EpochEnd = "carry",
    name: str = "bp",
) -> Method:
    """Build back-propagation: edges without delay, and no staleness.

    Options: see `Method`.

    Raises:
        OptionError: An option is out of range.

    >>> BP().memory(0, stages=4)
    MemoryCount(graphs=1, inputs=1, versions=1)
    """


PRESETS = {"bp": BP}
