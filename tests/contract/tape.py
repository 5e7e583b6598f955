"""A recorder that needs no GPU: it does again what PyTorch was asked to compute.

Like a CUDA graph it repeats no Python. So a function that reads what does not last, or asks the
host, gives other numbers or fails here.
"""

import math

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hocket.stage import core
from hocket.stage.graphs.recorder import GraphRecorder

CHANGES = {torch.ops.aten.native_batch_norm.default}
"""Operations that write to what they are given, and do not say so."""


class TapeRecorder(GraphRecorder):
    """Records the operations of a function, and does them again on the same tensors."""

    def __init__(self):
        self.tapes, self.replays = [], 0

    def new_memory(self):
        return object()

    def record(self, function, memory):
        self._spoil_shared()
        tape = Tape(shared=memory is None)
        with tape:
            function()
        self.tapes.append(tape)

        def replay():
            if tape.shared:
                self._spoil_shared()
            self.replays += 1
            tape.replay()

        return replay

    def _spoil_shared(self):
        """Overwrite what recordings have left in the memory that they share."""
        for tape in self.tapes:
            if tape.shared:
                tape.spoil()

    @property
    def outside(self):
        """Memory that recordings read and none of them has allocated, by its place."""
        own = set().union(*(tape.own for tape in self.tapes))
        read = {place: t for tape in self.tapes for place, t in tape.outside.items()}
        return {place: tensor for place, tensor in read.items() if place not in own}


class Tape(TorchDispatchMode):
    """The operations of one function in order, with their tensors."""

    def __init__(self, *, shared):
        super().__init__()
        self.shared = shared  # with others, which overwrite what it has computed
        self.own, self.outside = set(), {}  # places of its memory; other tensors by their place
        self._operations = []
        self._new = []  # tensors in memory of its own

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
            raise RuntimeError(f"{func} asks for a number")
        given = tensors_in((args, kwargs))
        result = func(*args, **kwargs)
        places = {place(tensor) for tensor in given}
        self.outside |= {place(t): t for t in given if place(t) not in self.own}
        fresh = [place(tensor) not in places for tensor in tensors_in(result)]
        new = [t for t, is_new in zip(tensors_in(result), fresh, strict=True) if is_new]
        self.own |= {place(tensor) for tensor in new}
        self._new += new
        if new or func._schema.is_mutable or func in CHANGES:
            self._operations.append((func, args, kwargs, tensors_in(result), fresh))
        return result

    def replay(self):
        """Do the operations again; no tensor tells that it has changed, as on a GPU."""
        known = [*self.outside.values(), *self._new]
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(known)):
            for func, args, kwargs, results, fresh in self._operations:
                again = tensors_in(func(*args, **kwargs))
                for old, new, is_new in zip(results, again, fresh, strict=True):
                    if is_new:
                        old.copy_(new)

    def spoil(self):
        """Overwrite everything that was computed."""
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(self._new)):
            for tensor in self._new:
                if tensor.is_floating_point():
                    tensor.fill_(math.nan)


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def record_on_tapes(monkeypatch):
    """Recorders of the stages and of the steps, in the order in which they will be built."""
    built = []

    def build_recorder(device):
        built.append(TapeRecorder())
        return built[-1]

    monkeypatch.setattr(core, "build_recorder", build_recorder)
    return built
