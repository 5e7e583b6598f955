"""Search for the points at which a network can be cut, with the reasons against all others."""

import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.modes import training_mode
from hocket.partition.cut_graph import CutGraph, CutPoint
from hocket.partition.recording.recorder import record_modes
from hocket.partition.recording.recording import (
    EVALUATION,
    TRAINING,
    Call,
    ForwardMode,
    Recording,
    Value,
    ValueKey,
)
from hocket.partition.recording.torch_functions import is_discrete
from hocket.partition.shared_weights import SharedWeights
from hocket.partition.unfit_network import require_uncompiled, unfit_error
from hocket.tree import Tree, count_samples, map_tensors, tensors

Candidate = dict[ForwardMode, Call]
"""Calls of one module in the recordings of all modes."""


def find_cut_points(network: nn.Module, sample: Tree) -> CutGraph:
    """Find all points at which a network can be cut.

    The network runs on the sample in training mode, with one more input in evaluation mode, and
    on a single input in both modes: differences show what depends on the mode or on the batch
    size. Weights, statistics and random state are restored.

    Raises:
        CutError: The network does not take the sample, cannot be followed, or is compiled.
    """  # noqa: DOC501  # unfit_error returns a CutError
    require_uncompiled(network)
    count = count_samples(sample)

    def resize_batch(size: int) -> Tree:
        def resize(value: Tensor) -> Tensor:
            has_batch = value.dim() and len(value) == count
            return torch.cat([value, value, value])[:size] if has_batch else value

        return map_tensors(resize, sample)

    # Batches of several sizes show which dimension is the batch's.
    size = max(count, 2)
    resized = {
        TRAINING: resize_batch(size),
        TRAINING._replace(single=True): resize_batch(1),
        EVALUATION: resize_batch(size + 1),
        EVALUATION._replace(single=True): resize_batch(1),
    }

    # Record the forward in all modes; again, if stages have to repeat some modules.
    try:
        with training_mode(network):
            recordings = record_modes(network, resized, frozenset())
            # NaN: the network takes no other number of rows, so no dimension is the batch's.
            ratio = (
                (size + 1) / size if resized[EVALUATION] is not resized[TRAINING] else math.nan
            )
            repeated = frozenset().union(*(r.repeated for r in recordings.values()))
            if not repeated and all(map(is_discrete, tensors(sample))):
                builder = _GraphBuilder(network, resized[TRAINING], recordings, repeated, ratio)
                repeated = builder.find_size_readers()
            if repeated:
                recordings = record_modes(network, resized, repeated)
    except CutError:
        raise
    except Exception as error:
        otherwise = (
            f"cannot follow the forward of a {type(network).__name__}, which takes the sample: "
            f"{error}; give the stages as an nn.Sequential or a list of modules, within which "
            "anything is possible, such as vmap and inference_mode"
        )
        raise unfit_error(network, sample, error, otherwise) from error
    return _GraphBuilder(network, resized[TRAINING], recordings, repeated, ratio).build()


@dataclass(eq=False)
class _GraphBuilder:
    """Builder of a `CutGraph` from recordings of a network.

    Args:
        network: The network.
        sample: Inputs of the recording in training mode.
        recordings: Recordings in all modes.
        repeated: Modules in which every stage repeats what depends on discrete inputs only.
        batch_ratio: Batch size of the recording in evaluation, divided by that in training;
            NaN if the network takes no other number of rows.
    """

    network: nn.Module
    sample: Tree
    recordings: dict[ForwardMode, Recording]
    repeated: frozenset[str]
    batch_ratio: float

    def __post_init__(self) -> None:
        self.shared_weights = SharedWeights(self.network)
        self.weights = dict([*self.network.named_parameters(), *self.network.named_buffers()])

    def build(self) -> CutGraph:
        accepted: list[Candidate] = []
        refused: dict[str, tuple[str, ...]] = {}
        skipped: dict[str, str] = {}
        for calls in self._candidates(skipped):
            if problems := tuple(dict.fromkeys(self._problems(calls))):
                refused[calls[TRAINING].name] = problems
            else:
                accepted.append(calls)
        return CutGraph(
            network=self.network,
            sample=self.sample,
            cut_points=tuple(self._build_cut_point(calls) for calls in accepted),
            refused=refused,
            skipped=skipped,
            weight_layers=self._find_weight_layers(accepted),
            weightless_layers=self._find_weightless_layers(accepted),
            repeated=self.repeated,
        )

    def _candidates(self, skipped: dict[str, str]) -> Iterator[Candidate]:
        """Yield the calls before which a cut divides something; ``skipped`` gets the others."""
        first_end = min(call.end for call in self.recordings[TRAINING].calls)
        previous: Call | None = None
        last_start = -1  # of a candidate in evaluation

        # Yield a call, or say why a cut before it is impossible or divides nothing.
        for call in self.recordings[TRAINING].calls:
            in_evaluation = self.recordings[EVALUATION].first_calls.get(call.name)
            if call.name in skipped:
                continue
            if reason := self._find_repeated_call(call):
                skipped[call.name] = reason
            elif (
                in_evaluation is None
                or in_evaluation.callers != call.callers
                or in_evaluation.start < last_start
            ):
                skipped[call.name] = "in evaluation it is not called, or elsewhere"
            elif call.start <= first_end:
                skipped[call.name] = "the network begins with it"
            elif (
                previous is not None
                and call.start == previous.start + 1
                and previous.name in call.callers
            ):
                skipped[call.name] = f"it begins where {previous.name!r} does; cut before that"
                previous = call
            else:
                previous, last_start = call, in_evaluation.start
                yield {
                    mode: same
                    for mode, recording in self.recordings.items()
                    if (same := recording.first_calls.get(call.name)) is not None
                    and same.callers == call.callers
                }

    def _find_repeated_call(self, call: Call) -> str | None:
        """Return the reason if the module or one of its callers is called more than once."""
        for recording in self.recordings.values():
            for name in (call.name, *call.callers):
                if (times := recording.call_counts[name]) > 1:
                    return f"module {name!r} is called {times} times"
        return None

    def _problems(self, calls: Candidate) -> Iterator[str]:
        """Yield the reasons against a stage that begins at these calls."""
        for mode, call in calls.items():
            recording = self.recordings[mode]
            for name in recording.weights_across[call.start]:
                if problem := self.shared_weights.find_problem(name, recording):
                    yield problem
            if call.checkpointed:
                yield "activation checkpointing repeats what is around it; cut before that"
            # Decisions before the call that a stage that begins there cannot repeat. Those
            # inside a module that the stage leaves out are of no concern to it.
            entered = self.repeated.union(call.callers)
            for query in recording.queries:
                if query.reads_elements and query.event < call.start and query.frame in entered:
                    yield query.reason
            yield from _find_unknown_values(recording, call)
            yield from _find_mutated_views(recording, call)
        yield from self._find_divided_buffers(calls)
        if self._needs_sizes(calls) and self._find_batch_dimension(calls) is None:
            yield "sizes of the inputs matter after it, and nothing that is sent shows them"

    def _find_divided_buffers(self, calls: Candidate) -> Iterator[str]:
        """Yield modules with buffers in two stages; they can only move to a device together."""
        for name in calls[TRAINING].callers:
            module = self.network.get_submodule(name)
            buffers = [f"{name}.{buffer}".lstrip(".") for buffer in module._buffers]
            sides = {
                recording.weights[buffer][0] < calls[mode].start
                for mode, recording in self.recordings.items()
                for buffer in buffers
                if mode in calls and buffer in recording.weights
            }
            if len(sides) > 1:
                subject = f"module {name!r}" if name else "the network itself"
                yield f"{subject} has buffers that are used on both sides"

    def find_size_readers(self) -> frozenset[str]:
        """Return the modules in which sizes are read that a later stage needs to know."""
        return frozenset(
            caller
            for calls in self._candidates({})
            if self._needs_sizes(calls)
            for call in calls.values()
            for caller in call.callers
        )

    def _needs_sizes(self, calls: Candidate) -> bool:
        """Return True if the forward depends on sizes of values that are not sent."""
        if self.repeated and all(map(is_discrete, tensors(self.sample))):
            return False  # all inputs are sent
        return any(self.recordings[mode].needs_sizes(call) for mode, call in calls.items())

    def _find_batch_dimension(self, calls: Candidate) -> tuple[int, int] | None:
        """Find the dimension of a sent value that grew in proportion to the batch."""
        sent = self.recordings[TRAINING].values_across[calls[TRAINING].start]
        sent_larger = self.recordings[EVALUATION].values_across[calls[EVALUATION].start]
        pairs = zip(sent, sent_larger, strict=False)
        for position, (value, larger) in enumerate(pairs):
            sizes = zip(value.shape, larger.shape, strict=False)
            for dimension, (size, larger_size) in enumerate(sizes):
                if size and larger_size / size == self.batch_ratio:
                    return position, dimension
        return None

    def _build_cut_point(self, calls: Candidate) -> CutPoint:
        sent = self.recordings[TRAINING].values_across[calls[TRAINING].start]
        batch = self._find_batch_dimension(calls)

        # The values to send in each mode, if it sends the same for a single input.
        keys = {}
        for mode, call in calls.items():
            values = self.recordings[mode].values_across[call.start]
            is_known = not mode.single
            if mode.single and batch is not None and len(sent) == len(values):
                # The values that are sent for a single input may show the batch size.
                position, dimension = batch
                shape = list(values[position].shape)
                count = count_samples(self.sample)
                shape[dimension : dimension + 1] = [n * count for n in shape[dimension:][:1]]
                is_known = shape == list(sent[position].shape)
            if is_known:
                value_keys = (_find_key(value, call) for value in values)
                keys[mode] = tuple(key for key in value_keys if key is not None)

        # Weights that are used on both sides in any mode go along.
        crossing = (self.recordings[m].weights_across[c.start] for m, c in calls.items())
        weights = tuple(dict.fromkeys(chain(*crossing)))
        return CutPoint(
            name=calls[TRAINING].name,
            callers=calls[TRAINING].callers,
            keys=keys,
            weights=weights,
            elements=sum(math.prod(value.shape) for value in sent)
            + sum(self.weights[name].numel() for name in weights),
            needs_sizes=self._needs_sizes(calls),
            shapes=tuple(value.shape for value in sent),
            batch=batch,
        )

    def _find_weight_layers(self, accepted: Sequence[Candidate]) -> dict[str, int]:
        """Return the layer that uses each weight; unused ones are with their predecessor.

        Unused buffers are with a used one of their module, all of whose buffers a stage has.
        """
        layers: dict[str, int] = {}
        unused: list[str] = []
        used_buffers: dict[str, int] = {}  # by their module
        buffers = dict(self.network.named_buffers())
        last = 0
        starts = {mode: _starts(accepted, mode) for mode in self.recordings}
        for name in self.weights:
            owner = name.rpartition(".")[0]
            for mode, recording in self.recordings.items():
                if name in recording.weights:
                    last = bisect_right(starts[mode], recording.weights[name][0])
                    if name in buffers:
                        used_buffers.setdefault(owner, last)
                    break
                if owner and owner in recording.first_calls:
                    last = bisect_right(starts[mode], recording.first_calls[owner].start)
            else:
                unused.append(name)
            layers[name] = last
        for name in buffers.keys() & unused:
            layers[name] = used_buffers.get(name.rpartition(".")[0], layers[name])
        for name, aliases in self.shared_weights.aliases.items():
            layers |= dict.fromkeys(aliases, layers[name])
        return layers

    def _find_weightless_layers(
        self, accepted: Sequence[Candidate]
    ) -> dict[str, tuple[int, ...]]:
        """Return the layers in which each module without weights is called."""
        starts = [calls[TRAINING].start for calls in accepted]
        layers: dict[str, set[int]] = {}
        for call in self.recordings[TRAINING].calls:
            module = self.network.get_submodule(call.name)
            if not any(True for _ in (*module.parameters(), *module.buffers())):
                layers.setdefault(call.name, set()).add(bisect_right(starts, call.start))
        return {name: tuple(sorted(numbers)) for name, numbers in layers.items()}


def _starts(accepted: Sequence[Candidate], mode: ForwardMode) -> list[int]:
    """Return the events of these calls; a call that is not made has the next one's."""
    starts = [sys.maxsize]
    for calls in reversed(accepted):
        starts.append(calls[mode].start if mode in calls else starts[-1])
    return starts[:0:-1]


def _find_key(value: Value, call: Call) -> ValueKey | None:
    """Return the last key of the value in a forward that is running at the call, if any."""
    keys = [
        key for key, event in value.keys if event < call.start and key.frame in call.callers
    ]
    return keys[-1] if keys else None


def _find_unknown_values(recording: Recording, call: Call) -> Iterator[str]:
    """Yield values that a stage that begins at the call cannot know."""
    for event, where in recording.untracked:
        if call.start <= event:
            yield f"a tensor that is used has an unknown origin ({where})"
    for value in recording.values_across[call.start]:
        if _find_key(value, call) is None:
            inner = f"a tensor computed inside {value.keys[0][0].frame!r}"
            yield f"{inner} is used without being returned, alone or in a tuple, list or dict"


def _find_mutated_views(recording: Recording, call: Call) -> Iterator[str]:
    """Yield in-place changes that would not reach a sent view of the same storage."""
    sent = recording.values_across[call.start]
    shared = Counter(value.storage for value in sent)
    for value in sent:
        mutated = any(event >= call.start for event in value.mutations)
        if shared[value.storage] > 1 and mutated:
            key = _find_key(value, call)
            yield (
                f"a tensor from {key.frame if key else ''!r} is changed in place after it, and "
                "a view of it is used as well; make that change out of place"
            )
