"""Random examples that can be learnt: noise around one centre for each class."""

# Shapes: N examples, M classes.

import torch
from torch import Generator, Tensor

from hocket.data.batches import Batches, InMemory
from hocket.data.dataset import Data, Kind
from hocket.data.randomness import generator
from hocket.errors import OptionError, listed, too_small


def synthetic(
    *,
    batch_size: int,
    seed: int = 0,
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    examples: int = 1024,
    test_examples: int = 256,
    noise: float = 1.0,
) -> Data:
    """Images (C, H, W) or vectors (D,) of any shape, drawn from the seed.

    Args:
        batch_size: Examples in a batch.
        seed: Decides centres, noise and order.
        shape: One input without its batch dimension.
        classes: Number of classes, which all occur equally often, give or take one.
        examples: Training examples.
        test_examples: Test examples, from the same centres.
        noise: Standard deviation around a centre; the centres' coordinates have 1.

    Raises:
        OptionError: A shape that is neither of an image nor of a vector, or a number too small.
    """
    problems = []
    if len(shape) not in (1, 3) or any(side < 1 for side in shape):
        problems.append(f"shape is {shape}; give (D,) for vectors or (C, H, W) for images")
    numbers = {"classes": classes, "examples": examples, "test_examples": test_examples}
    problems += too_small(numbers)
    if noise < 0:
        problems.append(f"noise is {noise}; give 0 or more")
    if problems:
        raise OptionError(listed("cannot make synthetic data", problems))
    chance = generator(seed, "examples")
    centres_M = torch.randn(classes, *shape, generator=chance)
    kind: Kind = "images" if len(shape) == 3 else "vectors"
    return Data(
        name="synthetic",
        train=Batches(
            _around(centres_M, examples, noise, chance), batch_size, seed=seed, shuffle=True
        ),
        test=Batches(_around(centres_M, test_examples, noise, chance), batch_size),
        classes=classes,
        shape=shape,
        kind=kind,
    )


def _around(centres_M: Tensor, examples: int, noise: float, chance: Generator) -> InMemory:
    """Examples of all classes in turn, each noise around its centre."""
    targets_N = torch.arange(examples) % len(centres_M)
    noise_N = torch.randn(examples, *centres_M.shape[1:], generator=chance)
    return InMemory(centres_M[targets_N] + noise * noise_N, targets_N)
