"""ADL: the schedule of FDG with M gradients to an update, which divides the staleness by M."""

from functools import partial

from hocket.methods.method import EpochEnd, Linearize, Method, Order, Reduce
from hocket.signals import Delayed


def ADL(
    *,
    accumulate: int = 4,
    reduce: Reduce = "mean",
    shrink: float = 1.0,
    linearize: Linearize = "stash",
    order: Order = "backward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "adl",
) -> Method:
    """Accumulated decoupled learning; every stage counts its own gradients.

    Zhuang, Toh, Lin, arXiv 2012.03747; Zhuang et al., ICML 2021.
    """
    return Method(
        name=name,
        paper="arXiv 2012.03747",
        signal=Delayed(shrink),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        order=order,
        linearize=linearize,
        accumulate=accumulate,
        reduce=reduce,
        epoch_end=epoch_end,
    )


PRESETS = {
    "adl": ADL,
    "adl-official": partial(ADL, reduce="sum", linearize="live", name="adl-official"),
}
