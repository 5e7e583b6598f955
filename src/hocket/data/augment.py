"""Transforms of batches of images: random crops, flips and normalisation.

Random numbers are drawn on the CPU, and images are changed on the device that they are on: the
choices are the same on every device.

Images are cropped before they are normalised. Like the code of the papers, we pad the raw image
with 0 (black), which is not 0 after normalisation.
"""

# Shapes: B batch, C channels, H height, W width, P padding; Y, X offsets of the crop.

from dataclasses import dataclass
from typing import final

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from hocket.data.batches import Transform
from hocket.data.randomness import send_to_device


@final
@dataclass(frozen=True)
class Crop:
    """Crop of zero-padded images to their original size, at a random offset for each image.

    Args:
        padding: Number of pixels added on each side.
    """

    padding: int = 4

    def __call__(self, images_BCHW: Tensor, rng: Generator) -> Tensor:
        """Return the cropped images, (B, C, H, W)."""
        B, _, H, W = images_BCHW.shape
        offsets_2B = torch.randint(2 * self.padding + 1, (2, B), generator=rng, device="cpu")
        y_B, x_B = send_to_device(offsets_2B, images_BCHW.device)
        # All possible crops as one view, so that one gather selects a crop for each image.
        crops_BCYXHW = pad(images_BCHW, (self.padding,) * 4).unfold(2, H, 1).unfold(3, W, 1)
        return crops_BCYXHW[torch.arange(B, device=y_B.device), :, y_B, x_B]


@final
@dataclass(frozen=True)
class Flip:
    """Horizontal flip of each image with probability 1/2."""

    def __call__(self, images_BCHW: Tensor, rng: Generator) -> Tensor:
        """Return a copy of the images, (B, C, H, W), about half of them flipped."""
        drawn_B = torch.rand(len(images_BCHW), generator=rng, device="cpu")
        flipped_B = send_to_device(drawn_B, images_BCHW.device) < 0.5
        return torch.where(flipped_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)


@final
@dataclass(frozen=True)
class Normalise:
    """Conversion of raw pixels to float32 with mean 0 and standard deviation 1 in each channel.

    Args:
        mean: Mean of each channel, of pixels scaled to 0 ... 1.
        std: Standard deviation of each channel, of pixels scaled to 0 ... 1.
        white: Raw value of a white pixel, which is scaled to 1.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: float = 255.0

    def __call__(self, images_BCHW: Tensor, rng: Generator) -> Tensor:
        """Return (images / white - mean) / std, (B, C, H, W); the generator is not used."""
        mean_C, std_C = torch.tensor([self.mean, self.std], device="cpu")
        both_2C11 = torch.stack([1 / (self.white * std_C), mean_C / std_C])
        scale_C11, shift_C11 = send_to_device(both_2C11[..., None, None], images_BCHW.device)
        return images_BCHW.float().mul(scale_C11).sub_(shift_C11)


@final
@dataclass(frozen=True)
class Chain:
    """Several transforms in sequence."""

    steps: tuple[Transform, ...]

    def __call__(self, images_BCHW: Tensor, rng: Generator) -> Tensor:
        """Return the images after the last transform, (B, C, H, W)."""
        for step in self.steps:
            images_BCHW = step(images_BCHW, rng)
        return images_BCHW
