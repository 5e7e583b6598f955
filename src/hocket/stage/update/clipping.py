"""Clipping of a stage's gradient to a largest norm."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from hocket.errors import OptionError
from hocket.stage.update.norms import Gradients, total_norm

Clipped = Literal["update", "batch"]
"""Gradient that is clipped: of each update, or of each batch before it is accumulated."""
_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_, whose bits these are


@dataclass(frozen=True)
class Clipping:
    """Limit of the Euclidean norm of a stage's gradient, over all weights that it trains.

    A gradient that is longer is scaled to this norm, after it was reduced over replicas.
    Pascanu, Mikolov and Bengio, arXiv 1211.5063, Algorithm 1, stage by stage.

    Attributes:
        norm: Largest norm; infinity for no clipping.
        what: ``update`` to clip what an update is made of, the mean or sum over accumulated
            batches; ``batch`` to clip the gradient of each batch before that.

    Raises:
        OptionError: The norm is not above 0.

    >>> str(Clipping(1.0)), str(Clipping(0.5, "batch")), str(Clipping())
    ('1.0', 'batch:0.5', 'none')
    """

    norm: float = math.inf
    what: Clipped = "update"

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise OptionError(f"clip is {self}; use a norm above 0, or none")

    def __str__(self) -> str:
        if self.norm == math.inf:
            return "none"
        return f"batch:{self.norm}" if self.what == "batch" else str(self.norm)

    def clipped(self, gradients: Gradients, of: Clipped) -> Gradients:
        """Return gradients of an update or a batch, scaled if that is to be clipped.

        Copies, as others hold the gradients: a neighbour, which is sent a view, and watchers.
        Nothing waits for the device.
        """
        if self.norm == math.inf or self.what != of:
            return gradients
        present = [gradient for gradient in gradients if gradient is not None]
        if not present:
            return gradients
        scale = (self.norm / (total_norm(present) + _EPSILON)).clamp(max=1.0)
        products = torch._foreach_mul(present, scale)
        # A gradient of one number would take the type of the scale.
        scaled = [p.to(g.dtype) for p, g in zip(products, present, strict=True)]
        remaining = iter(scaled)
        return [None if gradient is None else next(remaining) for gradient in gradients]


def as_clipping(value: object) -> Clipping:
    """Return the clipping for a number, for text or for nothing.

    Args:
        value: A norm; text such as ``1.0`` or ``batch:1.0``; ``none`` or None for no clipping.

    Raises:
        OptionError: It is none of these.

    >>> as_clipping("batch:1.0")
    Clipping(norm=1.0, what='batch')
    """
    if value is None or value == "none":
        return Clipping()

    # `batch:1.0` has a kind, `1.0` has none.
    kind, colon, number = str(value).rpartition(":")
    try:
        norm = math.nan if isinstance(value, bool) else float(number)
    except ValueError:
        norm = math.nan

    # Text that is no number, and norms that limit nothing.
    if not math.isfinite(norm) or (colon and kind != "batch"):
        raise OptionError(
            f"clip is {value!r}; use a norm, such as 1.0 for the gradient of each update, or "
            "batch:1.0 for the gradient of each batch before it is accumulated. The norm is "
            "over the weights of a stage: for the norm of the whole network, every stage would "
            "have to wait in each update for the backwards of all the others"
        )
    return Clipping(norm, "batch" if colon else "update")
