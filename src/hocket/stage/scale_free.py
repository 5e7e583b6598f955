"""Optimizers under which scaling a gradient changes nothing, and with it gradient shrinking."""

import warnings
from collections.abc import Iterable

from torch import optim

SCALE_FREE = (
    optim.Adadelta, optim.Adagrad, optim.Adam, optim.Adamax, optim.AdamW,
    optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop,
)  # fmt: skip


def warn_if_it_cancels(shrink: float, optimizers: Iterable[object], stacklevel: int) -> None:
    """Warn if a shrunk gradient moves these optimizers' weights as the whole one would."""
    kinds = {type(o).__name__ for o in optimizers if isinstance(o, SCALE_FREE)}
    if shrink != 1 and kinds:
        warnings.warn(
            f"shrink={shrink} cancels under {', '.join(kinds)}, whose steps do not depend on "
            "the scale of the gradient; use SGD, or leave shrink at 1",
            stacklevel=stacklevel + 1,
        )
