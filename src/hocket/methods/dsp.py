"""DSP: the schedule of FDG, with inputs kept instead of graphs and recomputed in the backward.

Reference: Xu, Huo, Huang, Diversely stale parameters, CVPR 2020, arXiv 1909.02625. Plain
version: ``tests/reference/dsp.py``. A stage's own Jacobian is taken at its current weights; its
input and the gradient it receives are old.

>>> from hocket.methods import FDG
>>> from hocket.program import unroll
>>> list(unroll(DSP(), stages=3, batches=4)) == list(unroll(FDG(), stages=3, batches=4))
True
"""

from hocket.methods.method import EpochEnd, Method, Order, preset
from hocket.options.common_options import Reduce
from hocket.signals import Delayed


@preset("arXiv 1909.02625", Delayed, linearize="recompute")
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


PRESETS = {"dsp": DSP}
