"""Flushed pipelines by their workers: GPipe and 1F1B.

GPipe (arXiv 1811.06965, figure 2c): worker k forwards the M micro-batches of a group, then
back-propagates them. 1F1B (arXiv 2006.09503; 2007.01045): it
forwards K-1-k of them, then one forward and one backward in turn. Each starts an action as
soon as its packet is there, and all update with the mean before the next group.
"""

from typing import Any

from torch import nn

from reference import pipedream
from reference._linearize import Batches


def gpipe(behind: int, batches: int) -> str:
    """Return the actions of a worker with so many workers behind it, for example FFFBBB."""
    return "F" * batches + "B" * batches


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    accumulate: int = 1,
    recompute: bool = False,
    **options: Any,  # of PipeDream
) -> list[float]:
    """Train ``modules`` in place; return the loss of each batch."""
    options["linearize"] = "recompute" if recompute else "stash"
    flushed = len(batches) // accumulate
    return pipedream.train(modules, batches, accumulate=accumulate, flushed=flushed, **options)
