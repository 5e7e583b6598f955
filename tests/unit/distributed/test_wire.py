"""A packet is decoded as it was encoded: structure, types, strides and bits."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contract.crossing import DTYPES
from contract.ports import describe
from hocket.distributed import wire
from hocket.errors import PacketError, TransitError


def round_trip(tree):
    """Return a tree as the neighbour receives it."""
    leaves = []
    spec = wire.encode_tree(tree, leaves)
    sent = [wire.to_dense(tensor) for tensor in leaves]
    described = {"spec": spec, "forms": list(map(wire.tensor_spec, sent))}
    first, rest = wire.encode_header(described)
    header = wire.decode_header(first, lambda _: rest)
    received = [wire.empty_tensor(form) for form in header["forms"]]
    for target, tensor in zip(received, sent, strict=True):
        if target.numel():
            wire.tensor_bytes(target).copy_(wire.tensor_bytes(tensor))
    return wire.decode_tree(header["spec"], received)


@st.composite
def dense_tensors(draw):
    """Draw a dense tensor: any bits, any order of dimensions, some of size 0 or 1."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    order = draw(st.permutations(range(len(shape))))
    make = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() * size
    bits = torch.randint(2 if dtype is torch.bool else 256, (count,), generator=make)
    flat = bits.to(torch.uint8).view(dtype)
    back = [order.index(d) for d in range(len(shape))]
    return flat.view([shape[d] for d in order]).permute(back)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), dense_tensors()
)
keys = st.text(max_size=3) | st.integers()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(trees)
def test_every_tree_is_received_unchanged(tree):
    assert describe(round_trip(tree)) == describe(tree)


def images():
    return torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)


DENSE = {
    "channels_last": images().contiguous(memory_format=torch.channels_last),
    "transposed": images().transpose(1, 3),
    "one channel": images()[:, :1].clone(memory_format=torch.channels_last),
    "size 1 with an arbitrary stride": torch.arange(6.0).as_strided((2, 1, 3), (3, 77, 1)),
    "a row of a larger tensor": images()[1],
}


@pytest.mark.parametrize("tensor", DENSE.values(), ids=DENSE)
def test_strides_are_kept_and_nothing_is_copied(tensor):
    assert wire.to_dense(tensor).data_ptr() == tensor.data_ptr()
    assert describe(round_trip(tensor)) == describe(tensor)


@pytest.mark.parametrize("length", [1, 900, 1012, 1013, 1024, 5000, 70_000])
def test_a_header_of_any_length_is_received_unchanged(length):
    header = {"x": "é" * (length // 6) + "y" * (length % 6)}
    first, rest = wire.encode_header(header)
    assert len(first) == wire.HEADER_PREFIX_BYTES
    room = wire.HEADER_PREFIX_BYTES - wire.FRAME_BYTES
    assert (rest is None) == (len(json.dumps(header)) <= room)
    asked = []
    assert wire.decode_header(first, lambda count: asked.append(count) or rest) == header
    assert asked == ([] if rest is None else [len(rest)])


@given(st.integers(0, 9 * wire.HEADER_PREFIX_BYTES - 1), st.sampled_from([10, 5000]))
def test_a_header_with_any_flipped_bit_is_refused(place, length):
    parts = wire.encode_header({"x": "y" * length})
    bits = sum(8 * len(part) for part in parts if part is not None)
    number, bit = divmod(place % bits, 8 * wire.HEADER_PREFIX_BYTES)
    part = parts[min(number, 1)]
    part[bit // 8 + wire.HEADER_PREFIX_BYTES * max(0, number - 1)] ^= 1 << bit % 8
    with pytest.raises(TransitError, match=r"a damaged header: its checksum is .{8}, and was"):
        wire.decode_header(parts[0], lambda _: parts[1])


@given(dense_tensors(), st.integers(0))
def test_a_tensor_with_any_flipped_bit_has_another_checksum(tensor, bit):
    dense = wire.to_dense(tensor).clone()
    before = wire.checksum(dense)
    if dense.numel():
        bits = wire.tensor_bytes(dense)
        bits[bit // 8 % len(bits)] ^= 1 << bit % 8
        assert wire.checksum(dense) != before


@pytest.mark.parametrize("leaf", [{1, 2}, range(3), 1j, torch.Size((1,)), b"bytes"], ids=repr)
def test_a_leaf_of_another_type_is_refused(leaf):
    kind = type(leaf).__name__
    with pytest.raises(PacketError, match=f"a {kind} cannot be sent to another process"):
        wire.encode_tree((1, [leaf]), [])


def test_a_key_that_json_would_change_and_an_impossible_tensor_are_refused():
    for key in ((1, 2), None, 1.5, True):
        with pytest.raises(PacketError, match=r"the key .* cannot be sent .*; use a string"):
            wire.encode_tree({key: 1}, [])
    for name in ("float33", "nn", "Tensor", "qint8"):
        with pytest.raises(PacketError, match=f"unknown type '{name}'"):
            wire.empty_tensor([name, [2], [1]])
    with pytest.raises(PacketError, match=r"float32 and shape \[4611686018427387904\], which"):
        wire.empty_tensor(["float32", [2**62], [1]])
