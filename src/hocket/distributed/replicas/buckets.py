"""Parameters that are sent together between replicas."""

from collections.abc import Sequence

from torch import nn

BUCKET_BYTES = 2**22
"""Enough to keep a link busy, small enough for most to be sent before the backward ends."""


def build_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split parameters into buckets of one dtype each, the last parameters first."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        bytes_ = parameter.nbytes
        if (
            buckets
            and buckets[-1][0].dtype == parameter.dtype
            and size + bytes_ <= BUCKET_BYTES
        ):
            buckets[-1].append(parameter)
            size += bytes_
        else:
            buckets.append([parameter])
            size = bytes_
    return buckets
