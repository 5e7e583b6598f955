"""Doing a forward again without leaving a trace: the same randomness, no second count.

Randomness is a pure function of (seed, stage, batch, pass). So a replay needs nothing kept,
stages in different processes draw what they would draw in one, and the caller's own random
numbers are left alone.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, cast

import torch
from torch import nn

from hocket.tree import Tree

Pass = Literal["signal", "forward", "backward", "learn"]


def preserve_rng(device: torch.device) -> AbstractContextManager[None]:
    """Afterwards, torch's random numbers go on as if nothing had been drawn inside."""
    context = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    return cast(AbstractContextManager[None], context)


@contextmanager
def seeded_rng(
    seed: int, stage: int, batch: int, which: Pass, device: torch.device
) -> Iterator[None]:
    """Inside, torch draws the numbers that belong to this pass of this batch at this stage."""
    words = f"{seed}/{stage}/{batch}/{which}".encode()
    key = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
    with preserve_rng(device):
        # Not torch.manual_seed: it records a stack trace for each kind of device not in use.
        torch.default_generator.manual_seed(key)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key)
        yield


def forward_without_statistics(module: nn.Module, inputs: Tree) -> Tree:
    """The module's output, with buffers (BatchNorm's running statistics) left as they are."""
    # Clones take the in-place updates; parameters are the module's own and get gradients.
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return torch.func.functional_call(module, copies, (inputs,))
