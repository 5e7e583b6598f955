"""FR, features replay: a late gradient meets the old input at the current weights.

Reference: Huo, Gu, Huang, NeurIPS 2018, arXiv 1807.04511, algorithm 1. Plain version:
``tests/reference/fr.py``. Play is a forward without a graph (F); replay forwards the kept input
again, with a graph (in B). The ticks are as in DDG.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(FR(), stages=3, batches=3), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0 U0
   1 | F1          | F1 B0 U0    | F1 B1 U1
   2 | F2 B0 U0    | F2 B1 U1    | F2 B2 U2
   3 | B1 U1       | B2 U2       |
   4 | B2 U2       |             |
"""

from functools import partial

from hocket.methods.method import EpochEnd, Method, Order, Statistics
from hocket.signals import Delayed


def FR(
    *,
    order: Order = "forward-first",
    forward_delay: int = 0,
    backward_delay: int = 1,
    statistics: Statistics = "forward",
    first_stage_rate: float = 1.0,
    epoch_end: EpochEnd = "carry",
    name: str = "fr",
) -> Method:
    """Build features replay.

    Options: see `Method`.

    Raises:
        OptionError: An option is out of range.

    >>> [FR().staleness(stage, stages=4) for stage in range(4)]
    [3.0, 2.0, 1.0, 0.0]
    """
    return Method(
        name=name,
        paper="arXiv 1807.04511",
        signal=Delayed(),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        order=order,
        linearize="recompute",
        statistics=statistics,
        first_stage_rate=first_stage_rate,
        epoch_end=epoch_end,
    )


PRESETS = {
    "fr": FR,
    "fr-official": partial(FR, statistics="both", first_stage_rate=2.0, name="fr-official"),
}
