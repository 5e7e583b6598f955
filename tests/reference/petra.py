"""PETRA (arXiv 2406.02052, algorithm 1): FDG's delays, and inputs computed from outputs.

Module k+1 sends its input back with the gradient. From it module k computes its own input,
layer after layer, and back-propagates from there. A module with a layer that has no inverse
keeps its inputs. BatchNorm counts a batch in the forward; in the paper, in the backward.
"""

import copy
from functools import partial

import torch
from torch import Tensor, nn

from reference import fdg
from reference._linearize import leaf


@torch.no_grad()
def invert(module: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    if not all(hasattr(layer, "reverse") for layer in module):
        return x
    for layer in reversed(copy.deepcopy(module)):  # statistics count in the forward only
        y = layer.reverse(y)
    return leaf(y)


train = partial(fdg.train, linearize="recompute", order="forward-first", inverse=invert)
