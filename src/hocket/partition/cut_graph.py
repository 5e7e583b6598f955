"""A network as a chain of layers between the points at which it can be cut."""

from dataclasses import dataclass

from torch import nn

from hocket.partition.recording.recording import ForwardMode, ValueKey
from hocket.tree import Tree


@dataclass(frozen=True)
class CutPoint:
    """A call of a module before which the network can be cut.

    Attributes:
        name: Name of the module.
        callers: Modules whose forward is running at the call, the network first.
        keys: Values that are sent to the next stage, for each mode of the forward.
        weights: Parameters that are used on both sides; their values are sent after the others.
        elements: Number of elements that are sent for the sample in training mode.
        needs_sizes: Whether the forward after it depends on sizes of the inputs.
        shapes: Shapes of the values that are sent in training mode.
        batch: The dimension that shows the batch size: a position in ``keys`` and a dimension
            of that value; None if there is none.
    """

    name: str
    callers: tuple[str, ...]
    keys: dict[ForwardMode, tuple[ValueKey, ...]]
    weights: tuple[str, ...]
    elements: int
    needs_sizes: bool
    shapes: tuple[tuple[int, ...], ...]
    batch: tuple[int, int] | None

    def sent_keys(self, mode: ForwardMode) -> tuple[ValueKey, ...]:
        """Return the values that are sent in this mode, or in the most similar recorded one."""
        return self.keys.get(mode, self.keys[mode._replace(single=False)])


@dataclass(frozen=True)
class StageSpan:
    """The part of a network's forward between two cut points.

    Attributes:
        begin: Cut point at which the stage begins; None for the start of the network.
        end: Cut point at which the stage ends; None for the end of the network.
    """

    begin: CutPoint | None
    end: CutPoint | None

    @property
    def split_modules(self) -> frozenset[str]:
        """Modules that this stage shares with others, because a cut is inside their forward."""
        points = [point for point in (self.begin, self.end) if point is not None]
        return frozenset(name for point in points for name in point.callers)

    def __str__(self) -> str:
        begin = repr(self.begin.name) if self.begin else "the start"
        return f"the stage from {begin} to {repr(self.end.name) if self.end else 'the end'}"


@dataclass(frozen=True)
class CutGraph:
    """A network as a chain of layers between cut points, as it ran on a sample.

    Attributes:
        network: The network.
        sample: Its inputs.
        cut_points: All cut points, in order; layer n ends at cut point n.
        refused: Reasons against a cut before other modules, by their names.
        skipped: Modules before which a cut divides nothing, and the reason.
        weight_layers: Layer of each parameter and buffer.
        weightless_layers: Layers in which each module without weights is called.
        repeated: Modules in which every stage repeats what depends on discrete inputs only; if
            there are any, all discrete inputs are sent to all stages.
    """

    network: nn.Module
    sample: Tree
    cut_points: tuple[CutPoint, ...]
    refused: dict[str, tuple[str, ...]]
    skipped: dict[str, str]
    weight_layers: dict[str, int]
    weightless_layers: dict[str, tuple[int, ...]]
    repeated: frozenset[str]

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Name of the first module of each layer; the first layer's is ``(start)``."""
        return ("(start)", *(point.name for point in self.cut_points))

    def layers_of(self, name: str) -> set[int]:
        """Return all layers that use weights of a module, or call weightless modules in it."""
        prefix = f"{name}."
        layers = {n for w, n in self.weight_layers.items() if w.startswith(prefix)}
        for module, called_in in self.weightless_layers.items():
            if module == name or module.startswith(prefix):
                layers.update(called_in)
        return layers
