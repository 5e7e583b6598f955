"""DNI: every stage learns at once from a predicted gradient, and mends the prediction later."""

from functools import partial

from hocket.methods.method import EpochEnd, Method
from hocket.signals import Synthetic


def DNI(
    *,
    labels: bool = False,
    forward_delay: int = 0,
    backward_delay: int = 0,
    epoch_end: EpochEnd = "carry",
    name: str = "dni",
) -> Method:
    """Decoupled neural interfaces; ``labels`` lets the prediction see the targets (cDNI).

    Jaderberg et al., ICML 2017, arXiv 1608.05343, section 2.1.

    ``backward_delay`` is the time that the regression target travels.
    """
    return Method(
        name=name,
        paper="arXiv 1608.05343",
        signal=Synthetic(labels),
        forward_delay=forward_delay,
        backward_delay=backward_delay,
        epoch_end=epoch_end,
    )


PRESETS = {"dni": DNI, "cdni": partial(DNI, labels=True, name="cdni")}
