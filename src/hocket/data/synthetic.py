"""Random examples that can be learned: noise around one centre for each class."""

# Shapes: N examples, M classes.

import torch
from torch import Generator, Tensor

from hocket.data.batches import Batches, InMemory
from hocket.data.dataset import Data, Kind
from hocket.data.randomness import make_generator
from hocket.errors import OptionError, raise_problems
from hocket.options.ranges import wrong_counts


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
    """Draw images (C, H, W) or vectors (D,) from the seed.

    Args:
        batch_size: Number of examples in a batch.
        seed: Seed of centres, noise and order.
        shape: Shape of one input without the batch dimension.
        classes: Number of classes; their numbers of examples differ by at most one.
        examples: Number of training examples.
        test_examples: Number of test examples, from the same centres.
        noise: Standard deviation around a centre; the centres' coordinates have 1.

    Raises:
        OptionError: The shape fits neither an image nor a vector, or a number is too small.
    """
    problems = []
    if len(shape) not in (1, 3) or any(side < 1 for side in shape):
        problems.append(f"shape is {shape}; give (D,) for vectors or (C, H, W) for images")
    problems += wrong_counts(1, classes=classes, examples=examples, test_examples=test_examples)
    if noise < 0:
        problems.append(f"noise is {noise}; give 0 or more")
    raise_problems(OptionError, "cannot make synthetic data", problems)
    rng = make_generator(seed, "examples")
    centres_M = torch.randn(classes, *shape, generator=rng, device="cpu")
    kind: Kind = "images" if len(shape) == 3 else "vectors"
    return Data(
        name="synthetic",
        train=Batches(
            _sample_around(centres_M, examples, noise, rng), batch_size, seed=seed, shuffle=True
        ),
        test=Batches(_sample_around(centres_M, test_examples, noise, rng), batch_size),
        classes=classes,
        shape=shape,
        kind=kind,
    )


def _sample_around(centres_M: Tensor, examples: int, noise: float, rng: Generator) -> InMemory:
    """Draw examples around the centres (M, ...), their classes in turn."""
    targets_N = torch.arange(examples, device="cpu") % len(centres_M)
    noise_N = torch.randn(examples, *centres_M.shape[1:], generator=rng, device="cpu")
    return InMemory(centres_M[targets_N] + noise * noise_N, targets_N)
