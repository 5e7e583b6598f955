"""Check that forwards leave their input, random numbers and weights alone, as declared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hocket.errors import LinearizeError, list_names, warn
from hocket.restore import numpy_and_python_state, preserve_rng, restore_state
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.update.untrained import describe_names
from hocket.stage.weight_copies.copies import version_key
from hocket.tree import Tree, copy_tensors, tensors

_NO_CHECK: AbstractContextManager[None] = nullcontext()


class WeightEdits(TorchFunctionMode):
    """Finds weights that are changed, or are given another memory, from now on.

    Embeddings with ``max_norm`` change theirs in their own forward.

    As a context manager it sees edits of ``weight.data`` as well. These raise the version of
    that tensor alone, which is kept until then.

    Args:
        weights: Weights by name.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._weights = weights
        self._keys = {name: version_key(weight) for name, weight in weights.items()}
        self._data: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            self._data.append(result)
        return result

    def names(self) -> list[str]:
        """Return the names of these weights."""
        edited = {data.untyped_storage().data_ptr() for data in self._data if data._version}
        return [
            name
            for name, weight in self._weights.items()
            if version_key(weight) != self._keys[name] or self._keys[name][0] in edited
        ]


class ForwardCheck:
    """Check of the first forward of a stage, or of each if forwards may see other weights.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
        known: What is known of its layers; where precautions are taken, the input and random
            numbers need no check.
        stand_in: What its forwards see instead of the newest weights, for messages; empty if
            they see these.

    Attributes:
        edits_weights: False once it is known that the layers leave their weights alone.
        backward_is_checked: True once a backward has shown that no forward is inside it.
    """

    def __init__(
        self, setup: Setup, parts: StageParts, known: KnownLayers, stand_in: str
    ) -> None:
        # Others stand in for weights that are trained, and for all in a graph that is compiled.
        weights = dict(parts.names.of_parameters(parts.module))
        if stand_in:
            weights = {name: p for name, p in weights.items() if p.requires_grad}
        late = setup.graph_delay(parts.index, parts.count) > 0
        if setup.compile and late and setup.method.linearize != "recompute":
            stand_in = "tensors of a compiled graph (compile)"

        # Edits cannot be seen in layers that are compiled.
        self._compiled = parts.module if setup.compile else None
        self._known = known
        self._stage = parts.index
        self._weights = weights
        self._stand_in = stand_in
        self._is_checked = known.plain and not known.declared and not stand_in
        self.edits_weights = not self._is_checked
        self.backward_is_checked = not known.declared

    def checking(self, leaves: Tree) -> AbstractContextManager[None]:
        """Return a context manager for a forward of inputs with tensors of shape (B, ...).

        Raises:
            LinearizeError: The forward edits an input, or a weight that others stand in for.
        """
        if self._is_checked:
            return self._watch_versions() if self._stand_in else _NO_CHECK
        self._is_checked = True
        return self._check_first(leaves)

    @contextmanager
    def _check_first(self, leaves: Tree) -> Iterator[None]:
        """Context manager for the first forward.

        Raises:
            LinearizeError: A forward changes a buffer that torch.compile computes wrongly then.
        """
        # Layers that are not compiled are watched; a compiled graph would hide what they do.
        inputs = tensors(leaves)
        edits = WeightEdits(self._weights)
        if self._compiled is None:
            with self._check_declared(inputs), edits:
                yield
        else:
            buffers = {  # floating ones, of layers that are not PyTorch's
                f"{path}.{name}".lstrip("."): buffer
                for path, layer in self._compiled.named_modules()
                if not type(layer).__module__.startswith("torch.nn.")
                for name, buffer in layer.named_buffers(recurse=False)
                if buffer.is_floating_point()
            }
            if self._stand_in or buffers:
                devices, changed = {tensor.device for tensor in inputs}, WeightEdits(buffers)
                with preserve_rng(devices), restore_state(self._compiled), edits:
                    self._compiled(copy_tensors(leaves))
                if names := changed.names():
                    raise LinearizeError(
                        f"stage {self._stage}: a forward changes the buffer "
                        f"{list_names(names)} in place, which torch.compile computes wrongly; "
                        "assign a new tensor (self.mean = self.mean + x), or train without "
                        "compile"
                    )
            self._refuse(edits)
            yield
        self._refuse(edits)

        # A declaration that is wrong is not believed any more.
        names = edits.names()
        self._known.checked = True
        self.edits_weights = bool(names)
        if names and self._known.plain:
            self._known.distrust()
            warn(
                f"stage {self._stage}: a forward changes {describe_names(names)}, and "
                f"plain_forward is declared by {list_names(self._known.declared)}; all "
                "precautions are taken as without it, which takes longer"
            )

    @contextmanager
    def _watch_versions(self) -> Iterator[None]:
        edits = WeightEdits(self._weights)
        yield
        self._refuse(edits)

    def _refuse(self, edits: WeightEdits) -> None:
        if self._stand_in and (names := edits.names()):
            raise LinearizeError(
                f"stage {self._stage}: a forward changes {describe_names(names)} itself, as "
                f"Embedding(max_norm=...) or a clamp does, and sees {self._stand_in} in their "
                "place, so that the change would be lost; compute with a changed copy of the "
                "weight, or leave that option out"
            )

    @contextmanager
    def _check_declared(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        if not self._known.declared or not self._known.plain:
            yield
            return
        devices = {tensor.device for tensor in inputs if tensor.is_cuda}
        versions = [tensor._version for tensor in inputs]
        before = _random_states(devices)
        yield
        names = list_names(self._known.declared)
        if [tensor._version for tensor in inputs] != versions:
            raise LinearizeError(
                f"stage {self._stage}: a forward edits its input in place; plain_forward, "
                f"which says that none does, is declared by {names}; take it from the class of "
                "that forward"
            )
        if _random_states(devices) != before:
            self._known.distrust()
            warn(
                f"stage {self._stage}: random numbers were drawn in a forward, by it or by "
                f"another thread, and plain_forward is declared by {names}; all precautions "
                "are taken as without it, which takes longer"
            )


def _random_states(gpus: set[torch.device]) -> object:
    """Return the states of all generators that are common to a process."""
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]
    return [state.tolist() for state in states], numpy_and_python_state()
