"""The tensors that one forward of a stage receives, computes and sends."""

from collections.abc import Collection
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hocket.errors import CutError
from hocket.partition.cut_graph import StageSpan
from hocket.partition.recording.recording import ForwardMode, ValueKey
from hocket.partition.recording.torch_functions import is_discrete
from hocket.tree import Tree, flatten, map_tensors, unflatten


class ForwardValues:
    """Tensors of one forward of a stage, by the steps that make them.

    A step before the stage yields a meta tensor. It is the placeholder of a received value if
    the previous stage has sent the value of that step.

    Args:
        network: The network.
        modules: All its modules.
        span: The part of its forward that is the stage.
        mode: Mode of this forward.

    Attributes:
        begun: Whether the stage has begun, and its own steps make values.
        device: Device of the received values; the CPU if there are none.
        received_weights: Weights that the previous stage has sent, by name.
        sent_keys: Keys of the values that the next stage needs.
    """

    def __init__(
        self,
        network: nn.Module,
        modules: Collection[nn.Module],
        span: StageSpan,
        mode: ForwardMode,
    ) -> None:
        self.begun = span.begin is None
        self.device = torch.device("cpu")
        self.received_weights: dict[str, Tensor] = {}
        self.sent_keys = span.end.sent_keys(mode) if span.end is not None else ()
        self.network = network
        self._modules = modules
        self.span = span
        self.mode = mode
        self._received: dict[ValueKey, Tensor] = {}
        self._met: set[ValueKey] = set()  # keys of received values that a step has made
        self._substitutes: dict[int, Tensor] = {}  # by the id of a placeholder
        self._placeholders: list[Tensor] = []  # kept, so that ids are not reused
        self._placeholder_of: dict[int, Tensor] = {}  # by the id of a received value
        self._computed: dict[ValueKey, Tensor] = {}
        # Tensors that may differ between stages; all others are constants.
        self._varying = WeakIdKeyDictionary()

    def receive(self, values: list[Tensor]) -> None:
        """Set the values that the previous stage sent."""
        assert self.span.begin is not None
        keys, weights = self.span.begin.sent_keys(self.mode), self.span.begin.weights
        self._received = dict(zip(keys, values[: len(keys)], strict=True))
        self.received_weights = dict(zip(weights, values[len(keys) :], strict=True))
        for name, value in self.received_weights.items():
            # Code of the network may have read the parameter before the stage begins.
            self._substitutes[id(self.network.get_parameter(name))] = value
            self._varying[value] = True
        self.device = values[0].device if values else self.device

    def register_inputs(self, inputs: Tree, *, constant: bool) -> Tree:
        """Register the inputs of the network, and return those to call it with.

        Args:
            inputs: Inputs of the network.
            constant: Whether discrete inputs are constants, as stages repeat the code that
                depends on them only. Then the forward gets copies of those that were received,
                which it may change.
        """
        leaves, structure = flatten(inputs)
        position = 0
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            key = ValueKey("", 0, position)
            if constant and is_discrete(leaf):
                received = self._received.get(key, leaf)
                self._met.add(key)
                leaves[index] = received.clone()
                self._computed[key] = received
            else:
                self._register(key, leaf)
            position += 1
        return unflatten(leaves, structure)

    def register(
        self, frame: str, path: int, results: list[Tensor], constants: Collection[int]
    ) -> None:
        """Register the tensors of a step under their keys.

        Args:
            frame: Module whose forward made the step.
            path: Its path, including the step.
            results: Tensors in the result of the step.
            constants: Ids of those that are the same in every stage.
        """
        for position, tensor in enumerate(results):
            if id(tensor) not in constants:
                self._register(ValueKey(frame, path, position), tensor)

    def _register(self, key: ValueKey, tensor: Tensor) -> None:
        self._varying[tensor] = True
        if key in self._received and not self.begun:
            self._met.add(key)
            received = self._received[key]
            self._placeholders.append(tensor)
            self._substitutes[id(tensor)] = received
            self._placeholder_of[id(received)] = tensor
            self._varying[received] = True
        if key in self.sent_keys:
            self._computed[key] = tensor

    def varies(self, tensor: Tensor) -> bool:
        """Return True if a tensor depends on weights, on random numbers, or on inputs.

        Discrete inputs do not count if the code that depends on them is repeated.
        """
        return id(tensor) in self._weights or tensor.is_meta or tensor in self._varying

    @cached_property
    def _weights(self) -> set[int]:
        """Ids of the network's parameters and buffers."""
        return {
            id(weight)
            for module in self._modules
            for weight in (*module._parameters.values(), *module._buffers.values())
        }

    def substitute(self, tree: Any) -> Any:
        """Return the same structure with received values in place of their placeholders."""
        if not self._substitutes:
            return tree
        return map_tensors(lambda t: self._substitutes.get(id(t), t), tree)

    def operands(self, tree: Any) -> Any:
        """Return the arguments of a step with the values that it computes with.

        Steps before the stage compute with the sizes of the sample, and received values have
        the batch's: their placeholders take part there.
        """
        if self.begun:
            return self.substitute(tree)
        if not self._placeholder_of:
            return tree
        return map_tensors(lambda t: self._placeholder_of.get(id(t), t), tree)

    @property
    def keeps_results(self) -> bool:
        """True unless no later step asks for a result: in the last stage, which sends none."""
        return not self.begun or bool(self.sent_keys)

    def begin(self) -> None:
        """Begin the stage, after a step before it has made each value that was received.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        if missing := [key for key in self._received if key not in self._met]:
            raise self._path_error("cannot tell what it received", missing[0].frame)
        self.begun = True

    def collect_sent(self) -> Tree:
        """Return the values to send to the next stage: a tensor, or a tuple of tensors.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        missing = [key for key in self.sent_keys if key not in self._computed]
        if missing:
            raise self._path_error("did not compute what the next one needs", missing[0].frame)
        values = [self.substitute(self._computed[key]) for key in self.sent_keys]
        for name in self.span.end.weights if self.span.end is not None else ():
            # The weights of this batch: those that were received, or our copy.
            received = self.received_weights.get(name)
            own = self.network.get_parameter
            values.append(own(name).clone() if received is None else received)
        return values[0] if len(values) == 1 else tuple(values)

    def _path_error(self, what: str, frame: str) -> CutError:
        """Return the error for a forward whose steps differ from the sample's."""
        return CutError(
            f"{self.span} {what}: the forward of {frame!r} took another path than on the "
            "sample; cut with a sample like the batches, or elsewhere, such as before "
            f"{frame!r} if it keeps a cache"
        )
