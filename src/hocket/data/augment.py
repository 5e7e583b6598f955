"""What happens to a batch of images between storage and network.

Cropping comes before normalisation: like the papers' codes we pad the raw image with 0, black,
which after normalisation is not 0.
"""

# Shapes: B batch, C channels, H height, W width, P padding; Y, X offsets of the crop.

from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from hocket.data.batches import Transform


@final
@dataclass(frozen=True)
class Crop:
    """Pads each image with zeros and cuts its size out again, each at an offset of its own.

    Args:
        padding: Pixels added on each side.
    """

    padding: int = 4

    def __call__(self, images_BCHW: Tensor, chance: Generator) -> Tensor:
        """Images of the same size, moved, what was outside black."""
        B, _, H, W = images_BCHW.shape
        y_B, x_B = torch.randint(2 * self.padding + 1, (2, B), generator=chance)
        # All possible crops as one view, so that picking one for each image is one gather.
        crops_BCYXHW = pad(images_BCHW, (self.padding,) * 4).unfold(2, H, 1).unfold(3, W, 1)
        return crops_BCYXHW[torch.arange(B), :, y_B, x_B]


@final
@dataclass(frozen=True)
class Flip:
    """Mirrors each image left to right with probability one half."""

    def __call__(self, images_BCHW: Tensor, chance: Generator) -> Tensor:
        """Copies, about half of them mirrored."""
        mirrored_B = torch.rand(len(images_BCHW), generator=chance) < 0.5
        return torch.where(mirrored_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)


@final
@dataclass(frozen=True)
class Normalise:
    """Raw pixels to float32 with about mean 0 and standard deviation 1 in each channel.

    Args:
        mean: For each channel, of pixels scaled to 0 ... 1.
        std: For each channel, of pixels scaled to 0 ... 1.
        white: The raw value that is scaled to 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: float = 255.0

    def __call__(self, images_BCHW: Tensor, chance: Generator) -> Tensor:
        """(raw / white - mean) / std; uses no chance."""
        std_C = torch.tensor(self.std)
        scale_C11 = (1 / (self.white * std_C))[:, None, None]
        shift_C11 = (torch.tensor(self.mean) / std_C)[:, None, None]
        return images_BCHW.float().mul(scale_C11).sub_(shift_C11)


@final
@dataclass(frozen=True)
class Chain:
    """Several transforms, one after the other."""

    steps: tuple[Transform, ...]

    def __call__(self, images_BCHW: Tensor, chance: Generator) -> Tensor:
        """The last step's images."""
        for step in self.steps:
            images_BCHW = step(images_BCHW, chance)
        return images_BCHW
