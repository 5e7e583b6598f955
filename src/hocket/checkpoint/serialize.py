"""Conversion of the state of one stage to bytes and back: tensors and plain values, never code.

The format, ``torch.save``'s, preserves strides and shared memory. The types that it may hold
are restricted when writing and when reading, so that reading never calls anything.
"""

import io
import zipfile
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor

from hocket.errors import CheckpointError

PLAIN = (type(None), bool, int, float, str, bytes)


def pack(state: Any, label: str) -> memoryview:
    """Serialize a state; its tensors may be modified afterwards.

    Args:
        state: Tensors, numbers, strings, None, and lists, tuples and dicts of them.
        label: Name of the state in error messages.

    Raises:
        CheckpointError: The state holds something else.
    """
    _require_plain(state, label)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def unpack(data: bytes, label: str) -> Any:
    """Deserialize a state that :func:`pack` wrote, to tensors on the CPU.

    Raises:
        CheckpointError: The bytes are not a serialized state, or hold forbidden types.
    """  # noqa: DOC501  # a BadZipFile is caught here
    try:
        # Refuse an archive that would grow when it is read; `torch.save` writes none.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise zipfile.BadZipFile("compressed entries")
        if sum(entry.file_size for entry in entries) > len(data):
            raise zipfile.BadZipFile("overlapping entries")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of any class, and with advice of PyTorch that is unsafe here
        raise CheckpointError(
            f"{label} holds no state that Hocket has written ({type(error).__name__}); nothing "
            "in it was run"
        ) from None


def _require_plain(value: Any, path: str) -> None:
    if type(value) in PLAIN or isinstance(value, Tensor):
        return
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            _require_plain(key, f"a key of {path}")
            _require_plain(item, f"{path}, {key}")
        return
    if type(value) in (list, tuple, torch.Size):
        for index, item in enumerate(value):
            _require_plain(item, f"{path}, {index}")
        return
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; use tensors, "
        "numbers, strings, None, or plain lists, tuples and dicts of them"
    )
