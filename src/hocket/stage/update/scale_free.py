"""Optimizers whose steps do not depend on the scale of gradients, so that shrinking cancels."""

from collections.abc import Mapping
from math import inf

from torch import optim

from hocket.errors import warn
from hocket.methods.method import Method
from hocket.optim.muon import MuonAdamW
from hocket.optim.rotated_adam import RotatedAdam
from hocket.remedies.displacement import LIONS
from hocket.signals import Delayed
from hocket.stage.update.clipping import Clipping

SCALE_FREE = (
    optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.Adam, optim.Adamax, optim.AdamW,
    optim.Muon, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SparseAdam,
    MuonAdamW, RotatedAdam,
)  # fmt: skip


def _is_scale_free(optimizer: object) -> bool:
    kind = type(optimizer)
    return isinstance(optimizer, SCALE_FREE) or (
        f"{kind.__module__}.{kind.__qualname__}" in LIONS
    )


def warn_of_cancelled_scales(
    method: Method, optimizers: Mapping[int, object], last: int, clipping: Clipping
) -> None:
    """Warn of changes of the size of gradients that the optimizers divide out again.

    Args:
        method: The method.
        optimizers: Optimizers of stages by their numbers; None for a stage without weights.
        last: Number of the last stage.
        clipping: Limit of gradients, which a sum may reach where a mean does not.
    """
    # A sum in place of a mean.
    limited = clipping.what == "update" and clipping.norm < inf
    kinds = {k: type(o).__name__ for k, o in optimizers.items() if _is_scale_free(o)}
    of_all = ", ".join(sorted(set(kinds.values())))
    if of_all and method.reduce == "sum" and method.accumulate > 1 and not limited:
        warn(
            f"reduce='sum' of {method.accumulate} gradients has the effect of their mean under "
            f"{of_all}, whose steps do not depend on the scale of the gradient; use SGD, or "
            "leave reduce at 'mean'"
        )

    # Factors on late gradients, and remedies that resize them.
    signal = method.signal
    of_early = ", ".join(sorted({kind for k, kind in kinds.items() if k < last}))
    if not of_early or not isinstance(signal, Delayed):
        return
    if signal.shrink != 1:
        warn(
            f"shrink={signal.shrink} cancels under {of_early}, whose steps do not depend on "
            "the scale of the gradient; use SGD, or leave shrink at 1",
        )
    if names := [type(remedy).__name__ for remedy in method.remedies if remedy.resizes]:
        warn(
            f"{', '.join(names)} changes little but the size of the elements of gradients, and "
            f"{of_early} divides most of that out again; use SGD, or leave it out",
        )
