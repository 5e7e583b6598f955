"""Conversion of the state of one stage to bytes and back: tensors and plain values, never code.

The format, ``torch.save``'s, preserves strides and shared memory. The types that it may hold
are restricted when writing and when reading, so that reading never calls anything.
"""

import io
import zipfile
from collections import Counter, OrderedDict
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.errors import CheckpointError

PLAIN = (type(None), bool, int, float, str, bytes)


def pack(state: Any, label: str) -> memoryview:
    """Serialize a state; its tensors may be modified afterwards.

    Args:
        state: Tensors, numbers, strings, None, and lists, tuples and dicts of them. Numbers of
            NumPy that compute as Python's do become these.
        label: Name of the state in error messages.

    Raises:
        CheckpointError: The state holds something else.
    """
    buffer = io.BytesIO()
    torch.save(_as_plain(state, label), buffer)
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


def _as_plain(value: Any, path: str) -> Any:
    """Return a value with Python's numbers in place of NumPy's.

    Raises:
        CheckpointError: It holds something else, such as a float32, which computes otherwise.
    """
    if type(value) in PLAIN or isinstance(value, Tensor):
        return value
    if isinstance(value, np.float64 | np.integer | np.bool_):
        return _as_plain(value.item(), path)
    if type(value) in (dict, OrderedDict, Counter):
        plain = copy(value)  # with the attributes of a module's state_dict
        plain.clear()
        for key, item in value.items():
            plain[_as_plain(key, f"a key of {path}")] = _as_plain(item, f"{path}, {key}")
        return plain
    if type(value) in (list, tuple, torch.Size):
        return type(value)([_as_plain(item, f"{path}, {n}") for n, item in enumerate(value)])
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; use tensors, "
        "Python's numbers (float(...)), strings, None, or plain lists, tuples and dicts of them"
    )
