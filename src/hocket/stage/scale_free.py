"""Optimizers whose steps do not depend on the scale of gradients, so that shrinking cancels."""

from collections.abc import Iterable

from torch import optim

from hocket.errors import warn
from hocket.remedies.displacement import LIONS
from hocket.remedies.remedy import Remedy
from hocket.stage.muon import MuonAdamW
from hocket.stage.rotated_adam import RotatedAdam

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


def warn_if_shrink_cancels(shrink: float, optimizers: Iterable[object]) -> None:
    """Warn if shrunk gradients lead to the same steps of these optimizers as whole ones.

    Args:
        shrink: Factor on a gradient at each edge.
        optimizers: Optimizers of the stages; None stands for a stage without weights.
    """
    kinds = {type(o).__name__ for o in optimizers if _is_scale_free(o)}
    if shrink != 1 and kinds:
        warn(
            f"shrink={shrink} cancels under {', '.join(kinds)}, whose steps do not depend on "
            "the scale of the gradient; use SGD, or leave shrink at 1",
        )


def warn_if_resizing_cancels(remedies: Iterable[Remedy], optimizers: Iterable[object]) -> None:
    """Warn if optimizers divide out most of what remedies do to the gradients.

    Args:
        remedies: Remedies of the method.
        optimizers: Optimizers of the stages; None stands for a stage without weights.
    """
    kinds = {type(o).__name__ for o in optimizers if _is_scale_free(o)}
    names = [type(remedy).__name__ for remedy in remedies if remedy.resizes]
    if names and kinds:
        warn(
            f"{', '.join(names)} changes little but the size of the elements of gradients, and "
            f"{', '.join(kinds)} divides most of that out again; use SGD, or leave it out",
        )
