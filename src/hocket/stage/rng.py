"""Random numbers that depend on seed, stage, batch and pass only.

So a forward can be repeated without keeping the state of a generator, stages in different
processes draw the same numbers as in one process, and the caller's own random numbers are left
alone.
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
    """Context manager that restores the state of torch's random number generators on exit."""
    fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    return cast(AbstractContextManager[None], fork)


@contextmanager
def seeded_rng(
    seed: int, stage: int, batch: int, pass_name: Pass, device: torch.device
) -> Iterator[None]:
    """Context manager that seeds torch's generators for one pass, and restores them on exit.

    Args:
        seed: Seed of the training.
        stage: Number of the stage.
        batch: Number of the batch.
        pass_name: Pass of the stage over the batch.
        device: Device of the stage.
    """
    words = f"{seed}/{stage}/{batch}/{pass_name}".encode()
    key = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")
    with preserve_rng(device):
        # Not torch.manual_seed: it records a stack trace for each kind of device not in use.
        torch.default_generator.manual_seed(key)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key)
        yield


def forward_without_buffer_updates(module: nn.Module, inputs: Tree) -> Tree:
    """Return a module's output, and leave its buffers (BatchNorm's statistics) unchanged.

    Tensors of the inputs and of the output have shape (B, ...).
    """
    # Clones receive the in-place updates; parameters are the module's own and get gradients.
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return torch.func.functional_call(module, copies, (inputs,))
