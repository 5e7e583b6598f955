"""DSP: the schedule of FDG, with inputs kept instead of graphs and recomputed in backward."""

from hocket.methods.method import EpochEnd, Method, Order, Reduce
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
    """Diversely stale parameters: a stage's own Jacobian is fresh, its input and error are old.

    Xu, Huo, Huang, CVPR 2020, arXiv 1909.02625.
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
