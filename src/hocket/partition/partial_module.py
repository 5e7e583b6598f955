"""A stage that is a part of a network's own forward.

The network's forward runs as the user wrote it. What comes before the stage is not computed:
calls give tensors without numbers, and where the stage begins those that it needs stand for
what it has received. What comes after is never reached: the forward is left at the call with
which the next stage begins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.cut_points import CutGraph, CutPoint, batch_size
from hocket.partition.intercept import intercept
from hocket.partition.meta_tensors import MetaModules, to_meta
from hocket.partition.partial_forward import PartialForward, StageSpan, StopForward
from hocket.partition.recorder import call_network
from hocket.partition.recording import ForwardMode
from hocket.partition.torch_functions import tensor_leaves
from hocket.tree import Tree, map_tensors, tensors


class PartialModule(nn.Module):
    """A stage: a part of the forward of a network.

    Its parameters and buffers have the names that they have in the network. It takes what the
    stage before gives: the network's inputs at first, else a tensor or a tuple of tensors.

    Args:
        network: The network; its modules stay what they are.
        part: Which part.
        modules: The network's modules that lie in this part as a whole, by name.
        own: Parameters and buffers of modules that do not, by name.
        sample: Inputs of the network, for their shapes.
        shapes: Shapes of what modules give; pieces of one network may share it.

    Raises:
        CutError: In a forward: it takes another path than it took on the sample.
    """

    def __init__(
        self,
        network: nn.Module,
        part: StageSpan,
        modules: dict[str, nn.Module],
        own: list[str],
        sample: Tree,
        shapes: MetaModules,
    ) -> None:
        super().__init__()
        self._part = part
        # In a tuple, so that it is not registered: other stages have their weights.
        self._whole = (network,)
        self._names = {module: name for name, module in network.named_modules()}
        self._sample = map_tensors(to_meta, sample)
        self._shapes = shapes
        self._count = len(modules)
        self.on_begin: Callable[[], None] | None = None  # for who takes its time
        for name, module in modules.items():
            path, _, last = name.rpartition(".")
            _room(self, path).add_module(last, module)
        for name in own:
            path, _, last = name.rpartition(".")
            room, owner = _room(self, path), network.get_submodule(path)
            if last in owner._parameters:
                room.register_parameter(last, owner._parameters[last])
            else:
                # The same dict: what replaces a buffer, such as a move, does so in both.
                room._buffers = owner._buffers
                room._non_persistent_buffers_set = owner._non_persistent_buffers_set

    def __len__(self) -> int:
        """How many modules of the network lie in it as a whole."""
        return self._count

    def forward(self, received: Tree) -> Tree:
        """The next stage's input, or the network's output."""
        (network,) = self._whole
        training = self.training and network.training
        count = self._batch_size(received)
        way = ForwardMode(training, single=count == 1)
        run = PartialForward(network, self._part, way, self._shapes, self.on_begin)
        inputs = received
        if self._part.begin is not None:
            run.receive(tensors(received))
            inputs = self._inputs(self._part.begin, tensors(received), count)
        run.register("", 0, tensor_leaves(inputs))
        with self._modes(network), intercept(self._names, run):
            try:
                output = call_network(network, inputs)
            except StopForward:
                return run.leaving()
        if self._part.end is not None:
            raise CutError(
                f"{self._part} never came to its end: the forward took another path than on "
                "the sample; cut with a sample like the batches, or cut elsewhere"
            )
        return run.given(output)

    def _batch_size(self, received: Tree) -> int | None:
        """How many inputs the batch has, if what was received shows it."""
        begin = self._part.begin
        if begin is None:
            return batch_size(received)
        if begin.batch is None:
            return None
        place, dimension = begin.batch
        size = tensors(received)[place].shape[dimension]
        return size * batch_size(self._sample) // begin.shapes[place][dimension]

    def _inputs(self, begin: CutPoint, values: list[Tensor], size: int | None) -> Tree:
        """Inputs without numbers, of the size of this batch if that matters."""
        if not begin.sized or begin.batch is None or size is None:
            return self._sample
        place, dimension = begin.batch
        known, was = values[place].shape, begin.shapes[place]
        others = [size for d, size in enumerate(known) if d != dimension]
        if others != [size for d, size in enumerate(was) if d != dimension]:
            raise CutError(
                f"{self._part} received a tensor of shape {tuple(known)}, and was cut for "
                f"{was} with any size in dimension {dimension}: sizes of the inputs matter in "
                "what the network does; pad the batches, or cut with a sample of this size"
            )
        count = batch_size(self._sample)

        def resized(value: Tensor) -> Tensor:
            fits = value.dim() and len(value) == count
            return value.new_empty(size, *value.shape[1:]) if fits else value

        return map_tensors(resized, self._sample)

    @contextmanager
    def _modes(self, network: nn.Module) -> Iterator[None]:
        """Modules that several stages go through are in evaluation mode if this stage is."""
        changed = []
        if not self.training:
            opened = (network.get_submodule(name) for name in self._part.opened)
            changed = [module for module in opened if module.training]
        for module in changed:
            module.training = False
        try:
            yield
        finally:
            for module in changed:
                module.training = True


def _room(piece: nn.Module, path: str) -> nn.Module:
    """The place in a piece for what belongs to this module of the network."""
    room = piece
    for part in path.split(".") if path else ():
        if part not in room._modules:
            room.add_module(part, nn.Module())
        room = room._modules[part]  # type: ignore[assignment]
    return room


def build_partial_modules(outline: CutGraph, borders: Sequence[int]) -> list[PartialModule]:
    """The network in pieces.

    Args:
        outline: Where it can be cut.
        borders: Places in ``outline.borders``, increasing.
    """
    chosen = [None, *(outline.cut_points[place] for place in borders), None]
    # Layer n ends at border n.
    stage_of = [
        sum(border < layer for border in borders) for layer in range(len(outline.names))
    ]
    made: list[PartialModule] = []
    shapes = MetaModules()
    for stage, (begin, end) in enumerate(pairwise(chosen)):
        modules: dict[str, nn.Module] = {}
        own: list[str] = []
        _share(outline, outline.network, "", stage, stage_of, modules, own)
        part = StageSpan(begin, end)
        made.append(PartialModule(outline.network, part, modules, own, outline.sample, shapes))
    return made


def _share(
    outline: CutGraph,
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


def _stages(outline: CutGraph, name: str, stage_of: Sequence[int]) -> set[int]:
    """The stages in which weights of a module, or modules without weights in it, are used."""
    found = {stage_of[home] for n, home in outline.homes.items() if n.startswith(f"{name}.")}
    return found | {
        stage_of[layer]
        for n, layers in outline.stateless.items()
        if n == name or n.startswith(f"{name}.")
        for layer in layers
    }
