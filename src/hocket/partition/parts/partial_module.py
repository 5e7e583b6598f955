"""A stage that is a part of a network's own forward.

The network's forward runs as the user wrote it. Steps before the stage are not computed: they
return meta tensors, and where the stage begins, received values replace those that it needs.
Steps after the stage do not run: the forward stops at the call that begins the next stage.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise

from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.cut_graph import CutGraph, CutPoint, StageSpan
from hocket.partition.parts.forward_values import ForwardValues
from hocket.partition.parts.meta_functions import empty_like
from hocket.partition.parts.meta_tensors import MetaModules
from hocket.partition.parts.partial_forward import PartialForward, StopForward
from hocket.partition.recording.intercept import intercept
from hocket.partition.recording.recorder import call_network
from hocket.partition.recording.recording import ForwardMode
from hocket.tree import Tree, count_samples, flatten, map_leaves, map_tensors, tensors

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types of inputs that are compared by their values, and not as objects."""


class PartialModule(nn.Module):
    """A stage: a part of the forward of a network.

    Its parameters and buffers have the same names as in the network. Its input is the network's
    input for the first stage, and otherwise the output of the previous stage: a tensor or a
    tuple of tensors.

    Args:
        graph: The network, whose modules are not changed, as it ran on a sample.
        span: Part of its forward.
        modules: Modules of the network that are in this stage as a whole, by name.
        weights: Names of parameters and buffers of other modules that are in this stage.
        meta_modules: Cache of outputs of modules; stages of one network can share it.

    Raises:
        CutError: A part of the network has the name of an attribute of this class. In a
            forward: it takes another path than on the sample.
    """

    def __init__(
        self,
        graph: CutGraph,
        span: StageSpan,
        modules: dict[str, nn.Module],
        weights: list[str],
        meta_modules: MetaModules,
    ) -> None:
        super().__init__()

        # The network's forward, of which this is a part.
        network = graph.network
        self._span = span
        self._repeated = graph.repeated
        # In a tuple, so that it is not registered: other stages have its other weights.
        self._network = (network,)
        self._names = {module: name for name, module in network.named_modules()}
        self._sample = map_tensors(empty_like, graph.sample)
        names = {"", *span.split_modules, *graph.repeated}
        # In a tuple for the same reason; the network itself is among them, even if it is whole.
        self._split = tuple(network.get_submodule(name) for name in names)
        self._meta_modules = meta_modules
        self._whole = tuple(modules.values())
        self.on_begin: Callable[[], None] | None = None  # called when the stage begins

        # The layers and weights of this part, under their names in the network.
        if taken := {*network._modules.keys(), *network._parameters.keys()} & {*dir(self)}:
            raise CutError(
                f"a stage has other attributes named {', '.join(sorted(taken))}; rename these "
                f"parts of the {type(network).__name__}"
            )
        for name, module in modules.items():
            path, _, last = name.rpartition(".")
            _get_container(self, path).add_module(last, module)
        for name in weights:
            path, _, last = name.rpartition(".")
            container, owner = _get_container(self, path), network.get_submodule(path)
            if last in owner._parameters:
                container.register_parameter(last, owner._parameters[last])
            else:
                # The same dict, so that replacing a buffer, as `to` does, affects both.
                container._buffers = owner._buffers
                container._non_persistent_buffers_set = owner._non_persistent_buffers_set

    @property
    def network_cut(self) -> nn.Module:
        """Network of which this is a part, in which a module may well be named ``network``."""
        return self._network[0]

    def forward(self, received: Tree) -> Tree:
        """Return the input of the next stage, or the output of the network.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        network = self.network_cut
        if self._span.begin is None and self._span.end is None:
            with self._share_mode():
                return call_network(network, received)
        if self._span.begin is None:
            if isinstance(received, dict) and isinstance(self._sample, dict):
                # In the order of the sample's.
                received = {k: received[k] for k in self._sample if k in received} | received
            self._require_same_constants(received)

        # Say which values this forward receives, and which it is to send.
        training = self.training and network.training
        count = self._find_batch_size(received)
        mode = ForwardMode(training, single=count == 1)
        values = ForwardValues(network, self._names, self._span, mode)
        inputs = received
        if self._span.begin is not None:
            values.receive(tensors(received))
            inputs = self._make_meta_inputs(self._span.begin, tensors(received), count)
        inputs = values.register_inputs(inputs, constant=bool(self._repeated))
        run = PartialForward(values, self._repeated, self._meta_modules, self.on_begin)

        # Run the network's own forward up to the next stage.
        with (
            run.cleanup,
            self._share_mode(),
            self._keep_buffers(),
            intercept(self._names, run),
        ):
            try:
                output = call_network(network, inputs)
            except StopForward:
                sent = values.collect_sent()
                self._require_batch_size(tensors(sent), count)
                return sent
        if self._span.end is not None:
            raise CutError(
                f"{self._span} never came to its end: the forward took another path than on "
                "the sample; cut with a sample like the batches, or cut elsewhere"
            )
        return values.substitute(output)

    def _require_same_constants(self, inputs: Tree) -> None:
        """Refuse inputs without tensors that differ from the sample's, which later stages have.

        Raises:
            CutError: One of them differs, or the inputs have another structure.
        """
        if isinstance(inputs, Tensor) and isinstance(self._sample, Tensor):
            return
        (now, structure), (then, known) = flatten(inputs), flatten(self._sample)
        advice = (
            "later stages get tensors only, and have all else from the sample: let the network "
            "take it as a tensor, or give the stages as a list of modules"
        )
        if structure != known:
            raise CutError(
                f"the inputs of the network are {map_leaves(_describe, inputs)}, and were "
                f"{map_leaves(_describe, self._sample)} in the sample it was cut with; give "
                "all batches the same form, also those to predict (targets among inputs may be "
                "zeros there), or let split_batch do so"
            )
        for value, sample in zip(now, then, strict=True):
            if not _is_same(value, sample):
                raise CutError(
                    f"an input of the network is {_describe(value)}, and was "
                    f"{_describe(sample)} in the sample it was cut with; {advice}"
                )

    def _require_batch_size(self, values: list[Tensor], count: int | None) -> None:
        """Refuse to send values that do not show the size of the batch to the next stage.

        Raises:
            CutError: The dimension that grows with the batch has another size.
        """
        end = self._span.end
        if end is None or not end.needs_sizes or end.batch is None or count is None:
            return
        position, dimension = end.batch
        shape, sample_shape = tuple(values[position].shape), end.shapes[position]
        wanted = sample_shape[dimension] * count // count_samples(self._sample)
        if shape[dimension] != wanted:
            raise CutError(
                f"{self._span} sends a tensor of shape {shape} for a batch of {count}, and was "
                f"cut for {sample_shape} in a batch of {count_samples(self._sample)}: sizes of "
                "the inputs matter in what the network does; pad the batches, or cut with a "
                "sample of this size"
            )

    def _find_batch_size(self, received: Tree) -> int | None:
        """Return the batch size if the received values show it."""
        begin = self._span.begin
        if begin is None:
            return count_samples(received)
        if begin.batch is None:
            return None
        position, dimension = begin.batch
        size = tensors(received)[position].shape[dimension]
        return size * count_samples(self._sample) // begin.shapes[position][dimension]

    def forwarded_modules(self) -> list[nn.Module]:
        """Return the modules of the network whose forwards run here, in part or as a whole."""
        inside = (each for module in self._whole for each in module.modules())
        return list(dict.fromkeys([*self._split, *inside]))

    @property
    def shares_weights(self) -> bool:
        """True if weights of one stage are sent to another one, from here or to here."""
        points = self._span.begin, self._span.end
        return any(point is not None and point.weights for point in points)

    @property
    def sent_weights(self) -> tuple[str, ...]:
        """Names of weights of other modules, which are sent behind the values of a batch."""
        return () if self._span.end is None else tuple(self._span.end.weights)

    def _make_meta_inputs(
        self, begin: CutPoint, values: list[Tensor], size: int | None
    ) -> Tree:
        """Return inputs of the network on the meta device, for a batch of a size, if known.

        Raises:
            CutError: A received tensor differs from the sample's in more than the batch size.
        """
        if not (begin.needs_sizes or self._repeated) or begin.batch is None or size is None:
            return self._sample
        position, dimension = begin.batch
        shape, sample_shape = values[position].shape, begin.shapes[position]
        other_sizes = [size for d, size in enumerate(shape) if d != dimension]
        known = [size for d, size in enumerate(sample_shape) if d != dimension]
        if begin.needs_sizes and other_sizes != known:
            raise CutError(
                f"{self._span} received a tensor of shape {tuple(shape)}, and was cut for "
                f"{sample_shape} with any size in dimension {dimension}: sizes of the inputs "
                "matter in what the network does; pad the batches, or cut with a sample of "
                "this size"
            )
        count = count_samples(self._sample)

        def resize(value: Tensor) -> Tensor:
            has_batch = value.dim() and len(value) == count
            return value.new_empty(size, *value.shape[1:]) if has_batch else value

        return map_tensors(resize, self._sample)

    @contextmanager
    def _keep_buffers(self) -> Iterator[None]:
        """Context manager that undoes assignments of tensors without numbers to buffers.

        The network's own forward may assign a buffer that another stage has.
        """
        before = [(module, dict(module._buffers)) for module in self._split]
        try:
            yield
        finally:
            for module, buffers in before:
                for name, buffer in buffers.items():
                    now = module._buffers.get(name)
                    if now is not None and now.is_meta:
                        module._buffers[name] = buffer

    @contextmanager
    def _share_mode(self) -> Iterator[None]:
        """Context manager that sets split modules to evaluation mode if this stage is in it."""
        changed = [] if self.training else [each for each in self._split if each.training]
        for module in changed:
            module.training = False
        try:
            yield
        finally:
            for module in changed:
                module.training = True


def _is_same(value: object, sample: object) -> bool:
    """Return True for two tensors, for the same object, and for equal plain values."""
    if isinstance(value, Tensor) or isinstance(sample, Tensor):
        return isinstance(value, Tensor) and isinstance(sample, Tensor)
    plain = isinstance(value, _PLAIN) and type(value) is type(sample)
    return value is sample or (plain and value == sample)


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return repr(value) if isinstance(value, _PLAIN) else f"an object of {type(value).__name__}"


def _get_container(stage: nn.Module, path: str) -> nn.Module:
    """Return the submodule of a stage at a path of the network; create it if necessary."""
    container = stage
    for name in path.split(".") if path else ():
        if name not in container._modules:
            container.add_module(name, nn.Module())
        container = container._modules[name]  # type: ignore[assignment]
    return container


def build_partial_modules(graph: CutGraph, positions: Sequence[int]) -> list[PartialModule]:
    """Build the stages of a network.

    Args:
        graph: The network and its cut points.
        positions: Positions in ``graph.cut_points`` of the chosen ones, increasing.
    """
    chosen = [None, *(graph.cut_points[position] for position in positions), None]
    # Layer n ends at cut point n.
    stage_of_layer = [
        sum(position < layer for position in positions)
        for layer in range(len(graph.layer_names))
    ]
    meta_modules = MetaModules()
    stages: list[PartialModule] = []
    for stage, (begin, end) in enumerate(pairwise(chosen)):
        modules, weights = _assign(graph, stage_of_layer, stage)
        span = StageSpan(begin, end)
        stages.append(PartialModule(graph, span, modules, weights, meta_modules))
    return stages


def _assign(
    graph: CutGraph, stage_of_layer: Sequence[int], stage: int
) -> tuple[dict[str, nn.Module], list[str]]:
    """Return the parts of a network that belong to a stage.

    Returns:
        Modules that are in the stage as a whole, by name, and the names of parameters and
        buffers of other modules that are in the stage.
    """
    modules: dict[str, nn.Module] = {}
    weights: list[str] = []

    def add(module: nn.Module, prefix: str) -> None:
        # Of a scripted module they have keys(), and cannot be iterated over themselves.
        for name in dict.fromkeys((*module._parameters.keys(), *module._buffers.keys())):
            layer = graph.weight_layers.get(prefix + name)
            if layer is not None and stage_of_layer[layer] == stage:
                weights.append(prefix + name)
        for name, child in module._modules.items():
            if child is None:
                continue
            stages = {stage_of_layer[layer] for layer in graph.layers_of(prefix + name)}
            weightless = not any(True for _ in chain(child.parameters(), child.buffers()))
            # One without weights is in each stage that calls it, such as a common dropout, or
            # in all if none does: a forward may look at its mode.
            if stages == {stage} or (weightless and (not stages or stage in stages)):
                modules[prefix + name] = child
            elif stage in stages:
                add(child, f"{prefix}{name}.")

    add(graph.network, "")
    return modules, weights
