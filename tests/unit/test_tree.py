"""Nested tensors are listed and mapped without losing their structure."""

from collections import namedtuple

import pytest
import torch

from hocket.tree import map_tensors, tensors

A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)
Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "tree",
    [
        (A, B, C),
        [A, [B, [C]]],
        {"a": A, "b": (B, {"c": C})},
        (A, None, 3.5, "text", [B], C),
        Pair(A, Pair(B, C)),
    ],
)
def test_tensors_come_in_the_order_of_the_structure(tree):
    assert [id(t) for t in tensors(tree)] == [id(A), id(B), id(C)]
    assert tensors(A)[0] is A
    assert tensors(None) == tensors(()) == tensors({}) == []


def test_only_tensors_are_changed():
    changed = map_tensors(lambda t: t + 1, {"x": (A, None, 3.5), "y": Pair([B], "text")})
    assert torch.equal(changed["x"][0], A + 1)
    assert changed["x"][1:] == (None, 3.5)
    assert isinstance(changed["y"], Pair)
    assert torch.equal(changed["y"].first[0], B + 1)
    assert changed["y"].second == "text"
    assert A.item() == 0, "the originals stay"
