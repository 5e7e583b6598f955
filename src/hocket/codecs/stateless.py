"""Codecs that learn nothing: numbers as they are, in 16 bits, or as integers of 8 bits."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.codecs.codec import Codec, Decoder, Encoder
from hocket.distributed.wire import parse_dtype
from hocket.errors import NonFiniteError, OptionError
from hocket.tree import Tree

STEPS = 127
"""Steps of the integers on either side of zero."""


class StatelessCodec(Encoder, Decoder):
    """Common base of codecs without state: each is its own encoder and decoder.

    Gradients are encoded in the same way.
    """

    biases_gradients = False

    @property
    def gradients(self) -> Codec:
        """The codec itself."""
        return self

    def encoder(self, seed: int, *, self_contained: bool = False) -> Encoder:
        """Return the codec itself."""
        return self

    def decoder(self) -> Decoder:
        """Return the codec itself."""
        return self

    def state_dict(self) -> Tree:
        """Return None: there is no state."""
        return None

    def load_state_dict(self, state: Tree) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True)
class Exact(StatelessCodec):
    """Codec that changes nothing."""

    def encode(self, tensor: Tensor) -> Tree:
        """Return the tensor itself."""
        return tensor

    def decode(self, encoded: Tree) -> Tensor:
        """Return the tensor itself (...)."""
        assert isinstance(encoded, Tensor)
        return encoded


@dataclass(frozen=True)
class Cast(StatelessCodec):
    """Codec that rounds numbers to a type of 16 bits; tensors of 16 bits stay as they are.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``. Stages send tensors exactly if they
            have larger numbers than it holds, above 3.39e38 and 65,504.

    Raises:
        OptionError: It is another type.

    >>> Cast(torch.bfloat16).decode(Cast(torch.bfloat16).encode(torch.tensor([1.001])))
    tensor([1.])
    """

    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in (torch.bfloat16, torch.float16):
            raise OptionError(f"dtype is {self.dtype!r}; use torch.bfloat16 or torch.float16")

    def encode(self, tensor: Tensor) -> Tree:
        """Return the rounded numbers, and the type of the tensor."""
        wide = tensor.dtype in (torch.float32, torch.float64)
        narrow = tensor.to(self.dtype) if wide else tensor
        if wide and tensor.numel():
            require_finite(torch.linalg.vector_norm(narrow, math.inf))
        return [narrow, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        narrow, name = encoded
        assert isinstance(narrow, Tensor)
        return narrow.to(parse_dtype(name.removeprefix("torch.")))


@dataclass(frozen=True)
class Integers(StatelessCodec):
    """Codec that rounds to 255 even steps, from minus the largest absolute value to plus it.

    The error of a number is at most half a step, and its rounding to the type of the tensor.

    >>> Integers().decode(Integers().encode(torch.tensor([-1.0, 0.1, 0.5])))
    tensor([-1.0000,  0.1024,  0.5039])
    """

    def encode(self, tensor: Tensor) -> Tree:
        """Return the integers, the size of a step, and the type of the tensor."""
        largest = tensor.abs().amax() if tensor.numel() else tensor.new_zeros(())
        # Types of 16 bits cannot hold the size of a step, and float32 not that of tiny numbers.
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        if 0 < require_finite(largest) < STEPS * torch.finfo(dtype).tiny:
            dtype = torch.float64
        wide = tensor.to(dtype)
        limits = torch.finfo(wide.dtype)
        # Zeros have a step, too, and 127 steps do not overflow.
        step = (largest.to(wide.dtype) / STEPS).clamp(
            limits.tiny, limits.max / STEPS * (1 - limits.eps)
        )
        return [torch.round(wide / step).to(torch.int8), step, str(tensor.dtype)]

    def decode(self, encoded: Tree) -> Tensor:
        """Return the rounded numbers in the type and shape of the tensor."""
        integers, step, name = encoded
        assert isinstance(integers, Tensor)
        assert isinstance(step, Tensor)
        numbers = integers.to(step.dtype) * step
        return numbers.to(parse_dtype(name.removeprefix("torch.")))


def require_finite(largest: Tensor) -> float:
    """Return the largest absolute value of a tensor, given as a scalar, if it can be encoded.

    Raises:
        NonFiniteError: It is NaN or infinity.
    """
    if not math.isfinite(value := float(largest)):
        raise NonFiniteError(
            f"the tensor to be sent holds {value}, which its codec cannot encode; lower the "
            "learning rate, use a warm-up, or inspect the batch"
        )
    return value
