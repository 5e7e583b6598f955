"""Gradients that a remedy can change element by element."""

import torch
from torch import Tensor, nn

from hocket.errors import OptionError


def dense_gradient(weight: nn.Parameter, stage: int) -> Tensor:
    """Return the gradient of a weight, of its shape.

    Args:
        weight: A weight that has one.
        stage: Number of the stage.

    Raises:
        OptionError: It is sparse or complex.
    """
    gradient = weight.grad
    assert gradient is not None
    if gradient.layout != torch.strided or gradient.is_complex():
        kind = "complex" if gradient.is_complex() else "sparse"
        raise OptionError(
            f"stage {stage}: a weight of shape {tuple(weight.shape)} has a {kind} gradient, "
            "and a remedy of the method changes real gradients element by element; leave the "
            "remedy out, or use other layers"
        )
    return gradient
