"""The state of one stage as bytes: tensors and plain values, never code.

torch's own format is used, as it keeps strides and tensors that share memory; what it may hold
is limited on both sides, so that reading one never calls anything.
"""

import io
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor

from hocket.errors import CheckpointError

PLAIN = (type(None), bool, int, float, str, bytes)


def pack(state: Any, what: str) -> memoryview:
    """The bytes of a state; its tensors may change afterwards.

    Args:
        state: Tensors, numbers, strings, None, and lists, tuples and dicts of them.
        what: What it is the state of, for messages.

    Raises:
        CheckpointError: It holds something else.
    """
    _require_plain(state, what)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def unpack(data: bytes, what: str) -> Any:
    """The state that was packed, on the CPU.

    Raises:
        CheckpointError: The bytes are none, or hold something else than a state may.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever foreign bytes lead to; torch's advice is not ours
        raise CheckpointError(
            f"{what} holds no state that Hocket has written ({type(error).__name__}); nothing "
            "in it was run"
        ) from None


def _require_plain(value: Any, place: str) -> None:
    if type(value) in PLAIN or isinstance(value, Tensor):
        return
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            _require_plain(key, f"a key of {place}")
            _require_plain(item, f"{place}, {key}")
        return
    if type(value) in (list, tuple, torch.Size):
        for number, item in enumerate(value):
            _require_plain(item, f"{place}, {number}")
        return
    raise CheckpointError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold; use tensors, "
        "numbers, strings, None, or plain lists, tuples and dicts of them"
    )
