"""Plain back-propagation, cut into stages: the baseline of every method."""

from hocket.methods.method import EpochEnd, Method, Reduce
from hocket.signals import Delayed


def BP(
    *,
    accumulate: int = 1,
    reduce: Reduce = "mean",
    epoch_end: EpochEnd = "carry",
    name: str = "bp",
) -> Method:
    """Edges without delay: every stage waits for all the others in every tick."""
    return Method(
        name=name,
        paper="Rumelhart, Hinton, Williams, Nature 323 (1986)",
        signal=Delayed(),
        forward_delay=0,
        backward_delay=0,
        accumulate=accumulate,
        reduce=reduce,
        epoch_end=epoch_end,
    )


PRESETS = {"bp": BP}
