"""Runners, by which the actions of a stage compute: each time, or once and then replayed.

An action is Python that receives and sends packets, and a few functions of tensors. A runner
runs these functions. A `ReplayRunner` gives each batch in flight a slot with memory for it: the
first batch of a slot has its functions recorded, later ones replay them. ::

    batch   0   1   2   3   4   5   6   7      fdg on two stages, stage 0
    slot    -   -   -   A   B   A   B   A
            computed    recorded replayed
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hocket.errors import warn
from hocket.stage.finite.late_check import LateCheck, Unnamed
from hocket.stage.graphs.recorder import GraphRecorder, fill
from hocket.stage.late_gradients.linearizer import Linearizer, is_ordinary
from hocket.stage.layers.known_layers import hooks_of
from hocket.stage.layers.module_tensors import ModuleTensors
from hocket.stage.parts import StageParts
from hocket.stage.report import Number
from hocket.stage.setup import Setup
from hocket.tree import Tree, flatten, map_tensors, tensors

Result = TypeVar("Result")
WARM_UP = 3
"""Batches of one kind that are computed before one is recorded: then all lazy work is done."""
MOST_CHANGES = 10
"""Changes from one batch to the next before a warning."""


class Differentiated(NamedTuple):
    """Results of a backward, besides the gradients that it leaves with the weights.

    Attributes:
        sent: Gradient of each input of the stage, (B, ...); None for an input without one.
        norm: Euclidean norm of the gradients of the weights; 0 after a fault.
        fault: The first value that is NaN or infinite, described; None if there is none.
        overflowed: True if the loss scale was too large.
    """

    sent: tuple[Tensor | None, ...] = ()
    norm: Number = 0.0
    fault: str | None = None
    overflowed: bool = False


class Runner:
    """Runs each function whenever it is called.

    Attributes:
        keeps_graphs: True if a graph is needed after its backward.
    """

    keeps_graphs = False

    def begin(self, batch: int, inputs: Tree) -> None:
        """Prepare for the functions of a batch, whose inputs have tensors of shape (B, ...)."""

    def resume(self, batch: int) -> None:
        """Prepare for the functions of the backward of a batch."""

    def run(
        self, batch: int, name: str, inputs: Tree, function: Callable[[Tree], Result]
    ) -> Result:
        """Return what a function computes for a batch.

        Args:
            batch: Number of the batch.
            name: Name of the function, of which there is one for each batch.
            inputs: Its input, nested tensors.
            function: The function.
        """
        return function(inputs)

    def differentiate(
        self, batch: int, inputs: Tree, function: Callable[[Tree], Differentiated]
    ) -> Differentiated:
        """Return what a function computes, and let it leave gradients with the weights.

        Args:
            batch: Number of the batch.
            inputs: Input of the function, nested tensors.
            function: The function.
        """
        return function(inputs)

    def lasting(self, batch: int, values: Tree) -> Tree:
        """Return results of a batch in memory that no later batch writes to."""
        return values

    def end(self, batch: int) -> None:
        """Let other batches have the memory of one that was back-propagated."""


@dataclass(frozen=True)
class _Recording:
    """One function as it was recorded.

    Attributes:
        inputs: Tensors that it takes its input from.
        result: Its result, whose tensors every replay fills.
        norms: Norms that it leaves to the late check.
        replay: Computes the result of the present input.
    """

    inputs: Sequence[Tensor]
    result: Any
    norms: Sequence[Unnamed]
    replay: Callable[[], None]


@dataclass(frozen=True)
class _Slot:
    """Memory of one batch in flight.

    Attributes:
        kind: Kind of the batches that its recordings are for.
        state: What has to hold for its recordings to be right.
        memory: Where its functions allocate their results.
        recordings: Its functions by name.
    """

    kind: Hashable
    state: Hashable
    memory: Any
    recordings: dict[str, _Recording] = field(default_factory=dict)


class ReplayRunner(Runner):
    """Runs the functions of the first batches, records a few, and replays them afterwards.

    Batches with other shapes than the first ones, or with other numbers outside of tensors, are
    computed each time, and so is every batch while hooks look on.

    Args:
        recorder: Recorder.
        stage: Number of the stage, for messages.
        modules: Layers of the stage and the network of its signal.
        trained: All weights with which backwards leave gradients.
        late: Check that norms are left to.
        forget_copies: Lets forwards make new copies of the weights.
        accumulates: The gradients of several batches wait for one update.
    """

    keeps_graphs = True

    def __init__(
        self,
        recorder: GraphRecorder,
        stage: int,
        modules: Sequence[nn.Module],
        trained: Sequence[nn.Parameter],
        late: LateCheck,
        forget_copies: Callable[[], None],
        *,
        accumulates: bool,
    ) -> None:
        self._recorder = recorder
        self._stage = stage
        self._tensors = [ModuleTensors(module) for module in modules]
        self._layers = [layer for module in modules for layer in module.modules()]
        self._hooks = [table for module in modules for table in hooks_of(module)]
        self._trained = trained
        self._late = late
        self._forget_copies = forget_copies
        self._accumulates = accumulates
        self._gradients = [torch.empty_like(weight) for weight in trained]
        # What all slots are for, and how often it has come in a row.
        self._kind: Hashable = None
        self._state: Hashable = None
        self._repeats = 0
        self._changes = 0
        self._free: list[_Slot] = []
        self._taken: dict[int, _Slot] = {}

    def begin(self, batch: int, inputs: Tree) -> None:
        """Give the batch a slot, if batches like it have come often enough; see the base."""
        if self._is_watched():
            return
        kind = _kind(inputs)
        if self._repeats > WARM_UP and kind != self._kind:
            return
        # Recordings are of no use for other shapes, weights, or modes of layers.
        state = self._present_state()
        if (kind, state) != (self._kind, self._state):
            self._changes += self._kind is not None
            self._kind, self._state, self._repeats, self._free = kind, state, 0, []
            if self._changes == MOST_CHANGES:
                warn(
                    f"stage {self._stage}: its weights or buffers are other tensors in each "
                    "batch, its layers change their modes, or batches have other shapes or "
                    "other numbers outside of tensors, so that no batch is captured "
                    "(cuda_graphs); write into buffers in place, and give numbers as tensors"
                )
        self._repeats += 1
        if self._repeats > WARM_UP:
            if not self._free:
                self._free.append(_Slot(kind, state, self._recorder.new_memory()))
            self._taken[batch] = self._free.pop(0)

    def resume(self, batch: int) -> None:
        """Take the slot away if weights or hooks have changed since the forward; see the base.

        The backward is computed then, with the graph of the slot, in which replays have left
        what belongs to this batch.
        """
        slot = self._taken.get(batch)
        if slot is not None and (self._is_watched() or slot.state != self._present_state()):
            del self._taken[batch]

    def run(
        self, batch: int, name: str, inputs: Tree, function: Callable[[Tree], Result]
    ) -> Result:
        """Record or replay a function of a batch that has a slot; see the base."""
        slot = self._taken.get(batch)
        if slot is None:
            return function(inputs)
        return self._run_in(slot, slot.memory, name, inputs, function)

    def differentiate(
        self, batch: int, inputs: Tree, function: Callable[[Tree], Differentiated]
    ) -> Differentiated:
        """Record or replay it, with gradients in memory that all slots share; see the base."""
        slot = self._taken.get(batch)
        if slot is None:
            return function(inputs)

        def compute(inputs: Tree) -> tuple[Tree, Tree, list[int]]:
            done = function(inputs)
            for leaf in slot.recordings["forward"].inputs:
                leaf.grad = None  # a later backward through this graph would add to it
            found = {n: p.grad for n, p in enumerate(self._trained) if p.grad is not None}
            fill([self._gradients[n] for n in found], list(found.values()))
            return done.sent, done.norm() if callable(done.norm) else done.norm, list(found)

        # Nothing that it computes is read after the next backward of any stage.
        sent, norm, learned = self._run_in(slot, None, "gradients", inputs, compute)
        gradients = [self._gradients[n] for n in learned]
        if self._accumulates:  # copies, which a single kernel fills
            copies = [torch.empty_like(gradient) for gradient in gradients]
            fill(copies, gradients)
            gradients = copies
        for n, gradient in zip(learned, gradients, strict=True):
            self._trained[n].grad = gradient
        return Differentiated(*map_tensors(torch.clone, [sent, norm]))

    def lasting(self, batch: int, values: Tree) -> Tree:
        """Return copies for a batch that has a slot; see the base."""
        return map_tensors(torch.clone, values) if batch in self._taken else values

    def end(self, batch: int) -> None:
        """Give its slot back; see the base."""
        slot = self._taken.pop(batch, None)
        if slot is not None and (slot.kind, slot.state) == (self._kind, self._state):
            self._free.append(slot)

    def _run_in(
        self,
        slot: _Slot,
        memory: Any,
        name: str,
        inputs: Tree,
        function: Callable[[Tree], Result],
    ) -> Result:
        """Record or replay a function; see `run` and `GraphRecorder.record`."""
        recording = slot.recordings.get(name)
        if recording is None:
            recording = slot.recordings[name] = self._record(memory, inputs, function)
        else:
            with torch.no_grad():
                fill(recording.inputs, tensors(inputs))
                recording.replay()
        self._late.add_copies(recording.norms)
        result: Result = recording.result
        return result

    def _record(
        self, memory: Any, inputs: Tree, function: Callable[[Tree], Result]
    ) -> _Recording:
        """Run a function on copies of its input, which later batches are copied into."""
        own = map_tensors(lambda t: t.detach().clone().requires_grad_(t.requires_grad), inputs)
        results: list[Result] = []

        def compute() -> None:
            results.append(function(own))

        # A recording makes its own copies of the weights, and no other forward may have them.
        self._forget_copies()
        try:
            with self._late.collecting() as norms:
                replay = self._recorder.record(compute, memory)
        except Exception as error:
            error.add_note(
                f"(stage {self._stage} recorded it for replays (cuda_graphs): then nothing may "
                "ask the device for a number, as item() does, and all tensors are dense; leave "
                "cuda_graphs out)"
            )
            raise
        finally:
            self._forget_copies()
        return _Recording(tensors(own), results[0], norms, replay)

    def _is_watched(self) -> bool:
        """Return True if hooks, which are Python, are to see each batch."""
        return any(self._hooks) or not all(map(is_ordinary, self._trained))

    def _present_state(self) -> Hashable:
        """Return everything besides the input that a recording depends on."""
        used = [tensor for module in self._tensors for tensor in module.all()]
        return (
            tuple([(tensor.data_ptr(), tensor.requires_grad) for tensor in used]),
            tuple([layer.training for layer in self._layers]),
        )


def _kind(inputs: Tree) -> Hashable:
    """Return what the kernels for inputs depend on, besides the numbers in their tensors."""
    leaves, structure = flatten(inputs)
    return structure, tuple(map(_kind_of_leaf, leaves))


def _kind_of_leaf(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad
    # A recording has the number in it, and -0.0 is another one than 0. Any other object may
    # have changed, so it equals nothing.
    return repr(leaf) if isinstance(leaf, float | int | str | None) else object()


def build_runner(
    setup: Setup,
    parts: StageParts,
    trained: Sequence[nn.Parameter],
    late: LateCheck,
    linearizer: Linearizer,
    recorder: GraphRecorder | None,
) -> Runner:
    """Build the runner of a stage.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
        trained: All weights with which backwards leave gradients.
        late: Check that norms are left to.
        linearizer: Linearizer of the stage.
        recorder: Recorder; None to compute each batch.
    """
    if recorder is None:
        return Runner()
    if parts.signal.learns_from_gradient:
        warn(
            f"stage {parts.index} of method {setup.method.name!r} has a network that learns "
            "from targets, which is not captured (cuda_graphs): the stage computes each batch "
            "as without"
        )
        return Runner()
    return ReplayRunner(
        recorder,
        parts.index,
        (parts.module, parts.signal_network),
        trained,
        late,
        linearizer.after_update,
        accumulates=setup.method.accumulate > 1,
    )
