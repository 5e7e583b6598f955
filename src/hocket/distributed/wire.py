"""Wire format of a packet: a header in JSON, and the memory of the tensors unchanged.

Strides are kept, so that a channels_last tensor arrives as one. Nothing is pickled: a message
is data only. Checksums detect damage in transit, not forgery.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from hocket.errors import PacketError, TransitError
from hocket.tree import Tree


def encode_tree(tree: Tree, tensors: list[Tensor]) -> Any:
    """Return the structure of a tree as JSON, and append its tensors to a list.

    Args:
        tree: Nested tuples, lists and dicts of tensors, numbers, strings and None.
        tensors: List to append to; the structure refers to its items by their index.

    Raises:
        PacketError: A container or a leaf is of a type that cannot be sent.

    >>> tensors = []
    >>> encode_tree((torch.ones(2), {"scale": 0.5}), tensors), len(tensors)
    ({'tuple': [{'tensor': 0}, {'dict': [['scale', 0.5]]}]}, 1)
    """
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {"tensor": len(tensors) - 1}
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [encode_tree(item, tensors) for item in tree]}
    if type(tree) is dict:
        for key in tree:
            if type(key) not in (str, int):
                raise PacketError(
                    f"the key {key!r} of a dict cannot be sent to another process; use a string"
                )
        return {"dict": [[key, encode_tree(item, tensors)] for key, item in tree.items()]}
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    raise PacketError(
        f"a {type(tree).__name__} cannot be sent to another process; let the stage return, and "
        "the batches hold, tensors, numbers, strings, None, or tuples, lists and dicts of them "
        "(config.use_cache=False leaves caches out of models of transformers)"
    )


def decode_tree(spec: Any, tensors: Sequence[Tensor]) -> Tree:
    """Return the tree of a structure that ``encode_tree`` has returned, with its tensors."""
    if not isinstance(spec, dict):
        return spec
    ((kind, inside),) = spec.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {key: decode_tree(item, tensors) for key, item in inside}
    items = [decode_tree(item, tensors) for item in inside]
    return tuple(items) if kind == "tuple" else items


def tensor_spec(tensor: Tensor) -> list[Any]:
    """Return dtype, shape and strides, from which the receiver allocates a tensor."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]


CPU = torch.device("cpu")


def to_dense(tensor: Tensor, device: torch.device = CPU) -> Tensor:
    """Return a tensor (...) on a device whose memory has every element once and no gaps.

    Its strides are in the same order; it is a copy only if it has to be.

    Raises:
        PacketError: It has no strides, as a sparse tensor, or is quantized.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise PacketError(
            f"a tensor of layout {tensor.layout} and type {tensor.dtype} cannot be sent; let "
            "the stage return dense tensors"
        )
    # A conjugate may exist as a mere flag on memory that holds something else.
    dense = tensor.detach().to(device).resolve_conj().resolve_neg()
    # A copy of a tensor with gaps or repeated elements has strides in the same order.
    if dense.is_contiguous() or _is_dense(dense.shape, dense.stride()):
        return dense
    return dense.clone()


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    dimensions = sorted((stride, size) for size, stride in zip(shape, strides, strict=True))
    expected = 1
    for stride, size in dimensions:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def empty_tensor(spec: Sequence[Any], device: torch.device = CPU) -> Tensor:
    """Allocate a tensor (...) for the result of ``tensor_spec``.

    Raises:
        PacketError: There is no such dtype, or no memory for the tensor.
    """
    name, shape, stride = spec
    dtype = parse_dtype(name)
    try:
        memory = torch.empty(math.prod(shape), dtype=dtype, device=device)
        return memory.as_strided(shape, stride)
    except (RuntimeError, OverflowError) as error:
        raise PacketError(
            f"a packet has a tensor of type {name} and shape {shape}, which cannot be "
            f"allocated ({str(error).partition(chr(10))[0]})"
        ) from error


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as ``float32``.

    Raises:
        PacketError: There is none, or it is a quantized one such as ``qint8``.
    """
    value = getattr(torch, name, None)
    if not isinstance(value, torch.dtype) or name.startswith("q"):
        raise PacketError(f"a packet has a tensor of the unknown type {name!r}")
    return value


def tensor_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a dense tensor as bytes (N,) of type uint8, without a copy."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def checksum(tensor: Tensor) -> int | None:
    """Return the XXH3 (64 bits) of a dense tensor; None on a GPU, to copy none of its memory.

    It reads memory several times as fast as zlib's CRC-32, and lets other threads run.
    """
    if tensor.device.type != "cpu":
        return None
    return xxh3_64_intdigest(tensor_bytes(tensor).numpy().data)


HEADER_PREFIX_BYTES = 1024
"""Size of the first part of a message, which holds as much of the header as fits."""
FRAME_BYTES = 12
"""Bytes before the header: two checksums, of the first part and of the rest, and its length."""
MAX_HEADER_BYTES = 2**22
"""Size of the largest header, which describes some fifty thousand tensors."""


def encode_header(header: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Encode a header as a first part (1024,) and the rest (N,), which is None if all fits.

    Raises:
        PacketError: It is too large.
    """
    text = json.dumps(header).encode()
    _check_length(len(text))
    room = HEADER_PREFIX_BYTES - FRAME_BYTES
    rest = bytearray(text[room:])
    body = _to_uint32(len(text)) + _to_uint32(zlib.crc32(rest)) + text[:room].ljust(room, b"\0")
    first = bytearray(_to_uint32(zlib.crc32(body)) + body)
    first_tensor = torch.frombuffer(first, dtype=torch.uint8)
    return first_tensor, torch.frombuffer(rest, dtype=torch.uint8) if rest else None


def _to_uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _check_length(length: int) -> None:
    if length > MAX_HEADER_BYTES:
        raise PacketError(
            f"the header of a packet has {length} bytes, and may have {MAX_HEADER_BYTES}; let "
            "the stage return fewer values"
        )


def decode_header(first: Tensor, receive_rest: Callable[[int], Tensor]) -> dict[str, Any]:
    """Decode a header.

    Args:
        first: Its first part.
        receive_rest: Receives this number of further bytes; called if there are any.

    Raises:
        TransitError: It is damaged.
        PacketError: It is too large.
    """
    data = first.numpy().tobytes()
    _check_intact(data[4:], data[:4])
    length = int.from_bytes(data[4:8], "big")
    _check_length(length)
    missing = length - (HEADER_PREFIX_BYTES - FRAME_BYTES)
    rest = receive_rest(missing).numpy().tobytes() if missing > 0 else b""
    _check_intact(rest, data[8:FRAME_BYTES])
    header: dict[str, Any] = json.loads(data[FRAME_BYTES : FRAME_BYTES + length] + rest)
    return header


def _check_intact(data: bytes, checksum: bytes) -> None:
    actual, expected = _to_uint32(zlib.crc32(data)).hex(), checksum.hex()
    if actual != expected:
        raise TransitError(
            f"a packet arrived with a damaged header: its checksum is {actual}, and was "
            f"{expected} when it was sent"
        )


def require_room(specs: Sequence[Any]) -> None:
    """Refuse tensors of these ``tensor_spec``, before memory is allocated for them.

    Raises:
        PacketError: They are larger than the memory of this machine.
    """
    nbytes = sum(map(spec_bytes, specs))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > memory:
        raise PacketError(
            f"a packet arrived whose tensors have {nbytes} bytes, more than the memory of this "
            f"machine ({memory} bytes)"
        )


def spec_bytes(spec: Sequence[Any]) -> int:
    """Return the size of the tensor of a ``tensor_spec``."""
    name, shape, _ = spec
    elements: int = math.prod(shape)
    return elements * parse_dtype(name).itemsize
