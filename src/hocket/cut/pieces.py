"""Stages that are parts of a network's own forward."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from hocket.cut.hollow import Shapes
from hocket.cut.outline import Outline
from hocket.cut.passage import Part
from hocket.cut.piece import Piece


def pieces(outline: Outline, borders: Sequence[int]) -> list[Piece]:
    """The network in pieces.

    Args:
        outline: Where it can be cut.
        borders: Places in ``outline.borders``, increasing.
    """
    chosen = [None, *(outline.borders[place] for place in borders), None]
    # Layer n ends at border n.
    stage_of = [
        sum(border < layer for border in borders) for layer in range(len(outline.names))
    ]
    made: list[Piece] = []
    shapes = Shapes()
    for stage, (begin, end) in enumerate(pairwise(chosen)):
        modules: dict[str, nn.Module] = {}
        own: list[str] = []
        _share(outline, outline.network, "", stage, stage_of, modules, own)
        part = Part(begin, end)
        made.append(Piece(outline.network, part, modules, own, outline.sample, shapes))
    return made


def _share(
    outline: Outline,
    module: nn.Module,
    name: str,
    stage: int,
    stage_of: Sequence[int],
    modules: dict[str, nn.Module],
    own: list[str],
) -> None:
    """Gather what of a module belongs to a stage."""
    prefix = f"{name}." if name else ""
    tensors = (*module._parameters, *module._buffers)
    homes = {
        n: stage_of[outline.homes[prefix + n]] for n in tensors if prefix + n in outline.homes
    }
    own += [prefix + n for n, home in homes.items() if home == stage]
    for child_name, child in module._modules.items():
        full = prefix + child_name
        if child is None:
            continue
        parts = _stages(outline, full, stage_of)
        if parts == {stage}:
            modules[full] = child
        elif stage in parts:
            _share(outline, child, full, stage, stage_of, modules, own)


def _stages(outline: Outline, name: str, stage_of: Sequence[int]) -> set[int]:
    """The stages in which weights of a module, or modules without weights in it, are used."""
    found = {stage_of[home] for n, home in outline.homes.items() if n.startswith(f"{name}.")}
    return found | {
        stage_of[layer]
        for n, layers in outline.stateless.items()
        if n == name or n.startswith(f"{name}.")
        for layer in layers
    }
