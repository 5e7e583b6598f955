"""Values that may cross an edge: every type, shape, layout and structure of them."""

import torch
from torch import nn

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
    torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of a type, none of them 0, -1 to 1 where it has fractions."""
    make = torch.Generator().manual_seed(0)
    drawn = torch.rand(shape, generator=make, dtype=torch.float64) * 2 - 1
    if not (dtype.is_floating_point or dtype.is_complex):
        return (drawn * 100).abs().ceil().to(dtype)
    return (drawn + 0.5j * drawn.flip(0) if dtype.is_complex and shape else drawn).to(dtype)


MAPS = numbers(20, 4, 6, 5)
WEIGHT = nn.Parameter(numbers(4, 8))
BUFFER = nn.BatchNorm1d(8).running_var
SHARED = numbers(4, 8)
MASK = nn.Transformer.generate_square_subsequent_mask(4)

TENSORS = {
    **{f"{dtype}": numbers(30, 8, dtype=dtype) for dtype in DTYPES},
    **{f"a number of {dtype}": numbers(dtype=dtype) for dtype in DTYPES},
    "no rows": torch.empty(0, 8),
    "no columns": torch.empty(8, 0, 2),
    "no integers": torch.empty(0, dtype=torch.int64),
    "one dimension": numbers(7),
    "expanded rows": numbers(8).expand(30, 8),
    "an expanded number": torch.tensor(0.25).expand(30, 8),
    "transposed": numbers(8, 30).T,
    "transposed sequences": numbers(8, 10, 30).transpose(0, 2),
    "every other column": numbers(30, 16)[:, ::2],
    "a transposed slice": numbers(9, 30)[1:].T,
    "maps": MAPS,
    "channels_last": MAPS.contiguous(memory_format=torch.channels_last),
    "maps in another order": MAPS.transpose(2, 3),
    "a slice of maps": MAPS[:, :2],
    "a conjugate": numbers(30, 8, dtype=torch.complex64).conj(),
    "a lazy negative": torch._neg_view(numbers(30, 8)),
    "a weight": WEIGHT,
    "an expanded weight": WEIGHT[0].expand(30, 8),
    "a transposed weight": WEIGHT.T,
    "a buffer": BUFFER,
    "with a graph": WEIGHT / 2,
    "a mask": MASK,
    "an expanded mask": MASK.expand(2, 1, 4, 4),
    "not a number": torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf]] * 2),
    "negative zeros": -torch.zeros(30, 8),
}
TREES = {
    "nothing": None,
    "numbers": (1, -2.5, True, 2**70, float("-inf"), 0.1, -0.0),
    "text": ["", "words", "é\n\x00"],
    "nested": {"a": (None, [SHARED, {"b": {1: SHARED[0], "c": ()}}]), "d": [], "e": {}},
    "twice the same": (SHARED, SHARED),
    "a tensor and its part": [SHARED, SHARED[1:3]],
}
