"""Asynchronous DGL with replay buffers (arXiv 1901.08164, algorithm 2), one turn at a time.

A module draws the freshest of the least used of the last batches that arrived.
"""

import torch
from torch import nn

from reference._linearize import Batches, Loss, descend


def train(
    modules: list[nn.Module],
    batches: Batches,
    *,
    turns: list[int],
    buffer: int,
    loss: Loss,
    heads: list[nn.Module],
    **options: float,  # of SGD
) -> list[float]:
    """Train ``modules`` and ``heads`` (one less) in place; return the losses of the last.

    Args:
        turns: Number of the module that works, for each turn.
        buffer: Number of the last arrived batches that each module keeps.
    """
    heads = [*heads, nn.Identity()]
    sgd = [
        torch.optim.SGD([*module.parameters(), *head.parameters()], **options)
        for module, head in zip(modules, heads, strict=True)
    ]
    arrived = [[] for _ in modules]  # at each module: [use count, h, y], all that ever came
    stream, losses = iter(batches), []
    for j in turns:
        if j == 0:
            h, y = next(stream)
        else:
            kept = arrived[j][-buffer:]
            if not kept:
                continue
            fewest = min(count for count, _, _ in kept)
            chosen = [entry for entry in kept if entry[0] == fewest][-1]
            chosen[0] += 1
            _, h, y = chosen
        h = modules[j](h)
        value = descend(sgd[j], loss(heads[j](h), y))
        if j + 1 < len(modules):
            arrived[j + 1].append([0, h.detach(), y])
        else:
            losses.append(value)
    return losses
