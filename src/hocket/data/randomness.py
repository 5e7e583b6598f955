"""Random generators as a pure function of a seed, a purpose and a key.

No two purposes share a stream, PyTorch's global generator is not used, and any batch of any
epoch can be reproduced by itself.
"""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hocket.errors import OptionError

Purpose = Literal["order", "augmentation", "examples", "held out"]


def make_generator(seed: int, purpose: Purpose, *key: int) -> torch.Generator:
    """Create a CPU generator for one purpose.

    Args:
        seed: Seed of the run, 0 or more.
        purpose: Use of the numbers; different purposes have independent streams.
        key: Numbers that select a stream, for instance epoch and batch, each 0 or more.

    Raises:
        OptionError: The seed or a part of the key is negative.

    >>> first, again = (make_generator(7, "order", 3) for _ in range(2))
    >>> torch.equal(torch.randperm(9, generator=first), torch.randperm(9, generator=again))
    True
    """
    if min(seed, *key, 0) < 0:
        raise OptionError(
            f"seed {seed} with key {key}: a number is negative; use numbers from 0 on"
        )
    # A spawn key, not a longer seed: numpy pads seeds with zeros, so [1] and [1, 0] collide.
    spawn_key = (get_args(Purpose).index(purpose), *key)
    state = np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(1, np.uint64)
    # 63 bits: the range that every PyTorch version takes.
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def send_to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return values (B, ...) of the CPU on a device, without waiting for its work.

    CUDA keeps a copy of ordinary memory before the call returns.
    """
    return values.to(device, non_blocking=device.type == "cuda")


def divide_rows(examples: int, held: int) -> tuple[Tensor, Tensor]:
    """Return the rows of the rest and of the held-out examples, each in ascending order.

    >>> [rows.tolist() for rows in divide_rows(5, 2)]
    [[0, 1, 4], [2, 3]]
    """
    rows_N = torch.randperm(examples, generator=make_generator(0, "held out"), device="cpu")
    return rows_N[held:].sort().values, rows_N[:held].sort().values
