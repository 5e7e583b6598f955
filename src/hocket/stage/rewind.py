"""Doing a forward again without leaving a trace: the same randomness, no second count.

Randomness is a pure function of (seed, stage, batch, pass). So a replay needs nothing kept,
stages in different processes draw what they would draw in one, and the caller's own random
numbers are left alone.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from hocket.tree import Tree

Pass = Literal["signal", "forward", "backward", "learn"]


@contextmanager
def randomness(
    seed: int, stage: int, batch: int, which: Pass, device: torch.device
) -> Iterator[None]:
    """Inside, torch draws the numbers that belong to this pass of this batch at this stage."""
    key = hashlib.blake2b(f"{seed}/{stage}/{batch}/{which}".encode(), digest_size=8)
    indices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=indices):
        torch.manual_seed(int.from_bytes(key.digest(), "big"))
        yield


def uncounted(module: nn.Module, inputs: Tree) -> Tree:
    """The module's output, with buffers (BatchNorm's running statistics) left as they are."""
    # Clones take the in-place updates; parameters are the module's own and get gradients.
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return torch.func.functional_call(module, copies, (inputs,))
