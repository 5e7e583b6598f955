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
        has_room = buckets and size + parameter.nbytes <= BUCKET_BYTES
        if not has_room or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets
