"""FDG: no lock is left; every stage works on a batch of its own in every tick."""

from functools import partial

from hocket.methods.method import EpochEnd, Linearize, Method, Order
from hocket.signals import Delayed


def FDG(
    *,
    shrink: float = 1.0,
    linearize: Linearize = "stash",
    order: Order = "backward-first",
    forward_delay: int = 1,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "carry",
    name: str = "fdg",
) -> Method:
    """Fully decoupled training with delayed gradients and gradient shrinking.

    Zhuang, Wang, Liu, Lin, TNNLS 33(10), arXiv 1906.09108, algorithm 1.

    Args:
        shrink: Factor in (0, 1] on a gradient at each edge it crosses (beta).
        linearize: At which weights a late gradient is applied.
        order: What comes first in a tick; the paper's backward-first saves one update.
        forward_delay: Ticks that an activation travels.
        backward_delay: Ticks that a gradient travels.
        epoch_end: Whether batches stay in flight from one epoch to the next.
        name: The name under which records list it.

    Raises:
        OptionError: An option is out of range.
    """
    return Method(
        name=name,
        paper="arXiv 1906.09108",
        signal=Delayed(shrink),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        order=order,
        linearize=linearize,
        epoch_end=epoch_end,
    )


PRESETS = {"fdg": FDG, "fdg-official": partial(FDG, linearize="live", name="fdg-official")}
