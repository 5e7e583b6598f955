"""FR, features replay: a late gradient meets the old input at the current weights.

Reference: Huo, Gu, Huang, NeurIPS 2018, arXiv 1807.04511, algorithm 1. Plain version:
``tests/reference/fr.py``. Play is a forward without a graph (F); replay forwards the kept input
again, with a graph (in B). The ticks are as in DDG.

>>> from hocket.methods import DDG
>>> from hocket.program import unroll
>>> list(unroll(FR(), stages=3, batches=3)) == list(unroll(DDG(), stages=3, batches=3))
True
"""

from functools import partial

from hocket.methods.method import EpochEnd, Method, Order, Statistics, preset
from hocket.signals import Delayed


@preset("arXiv 1807.04511", Delayed, linearize="recompute")
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


PRESETS = {
    "fr": FR,
    "fr-official": partial(FR, statistics="both", first_stage_rate=2.0, name="fr-official"),
}
