"""DDG: backward passes of all stages run at once, each on the gradient of an older batch."""

from functools import partial

from hocket.methods.method import EpochEnd, Linearize, Method, Order
from hocket.signals import Delayed


def DDG(
    *,
    linearize: Linearize = "stash",
    order: Order = "forward-first",
    forward_delay: int = 0,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "ddg",
) -> Method:
    """Decoupled parallel back-propagation with delayed gradients; the forward lock stays.

    Huo, Gu, Yang, Huang, ICML 2018, arXiv 1804.10574, algorithm 1.
    """
    return Method(
        name=name,
        paper="arXiv 1804.10574",
        signal=Delayed(),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        order=order,
        linearize=linearize,
        epoch_end=epoch_end,
    )


PRESETS = {"ddg": DDG, "ddg-official": partial(DDG, linearize="live", name="ddg-official")}
