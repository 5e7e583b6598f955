"""Where a network can be cut, and why not elsewhere."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.modes import evaluation_mode
from hocket.partition.recorder import record_forward, sample_error
from hocket.partition.recording import USUAL, Call, ForwardMode, Recording, Value, ValueKey
from hocket.tree import Tree, map_tensors, tensors

# In evaluation, with more inputs than in training.
MORE = ForwardMode(training=False, single=False)


@dataclass(frozen=True)
class CutPoint:
    """A call of a module before which the network can be cut.

    Attributes:
        name: The module.
        inside: The modules in whose forward it is called, the network first.
        keys: What has to be sent over it, by the way that the forward takes.
        numbers: How many that are of the sample in training mode.
        sized: Whether sizes of the inputs matter for what comes after it.
        shapes: Of what is sent in training mode.
        batch: Where the size of the batch shows: a place in ``keys``, and a dimension.
    """

    name: str
    inside: tuple[str, ...]
    keys: dict[ForwardMode, tuple[ValueKey, ...]]
    numbers: int
    sized: bool
    shapes: tuple[tuple[int, ...], ...]
    batch: tuple[int, int] | None

    def sent(self, way: ForwardMode) -> tuple[ValueKey, ...]:
        """What has to be sent when the forward takes this way, or the nearest that is known."""
        return self.keys.get(way, self.keys[way._replace(single=False)])


@dataclass(frozen=True)
class CutGraph:
    """A network as it ran on a sample.

    Attributes:
        network: The network.
        sample: What it ran on.
        cut_points: Where it can be cut, in order.
        refused: Why it cannot be cut before other modules, by their names.
        skipped: Modules before which nothing would be gained, and why.
        homes: The layer of each parameter and buffer: layer n ends at border n.
        stateless: Layers in which modules without weights are called.
    """

    network: nn.Module
    sample: Tree
    cut_points: tuple[CutPoint, ...]
    refused: dict[str, tuple[str, ...]]
    skipped: dict[str, str]
    homes: dict[str, int]
    stateless: dict[str, tuple[int, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """The layers, by the module each begins with; the first is called ``(start)``."""
        return ("(start)", *(border.name for border in self.cut_points))


def batch_size(inputs: Tree) -> int:
    """How many inputs a batch has: the first dimension of its first tensor."""
    found = tensors(inputs)
    return len(found[0]) if found and found[0].dim() else 1


def find_cut_points(network: nn.Module, sample: Tree) -> CutGraph:
    """Where the network can be cut.

    It runs on the sample in training mode and, with one input more, in evaluation, and on one
    input alone in both: what is different then depends on the mode or on the size of the batch.
    Weights, statistics and random numbers are left as they were.
    """
    count = batch_size(sample)

    def rows(number: int) -> Tree:
        def taken(value: Tensor) -> Tensor:
            fits = value.dim() and len(value) == count
            return torch.cat([value, value, value])[:number] if fits else value

        return map_tensors(taken, sample)

    usual = max(count, 2)
    modes = {module: module.training for module in network.modules()}
    try:
        if not network.training:
            network.train()
        found = {USUAL: record_forward(network, rows(usual))}
        with suppress(Exception):  # BatchNorm does not train on one number
            found[ForwardMode(training=True, single=True)] = record_forward(network, rows(1))
        with evaluation_mode(network):
            found[MORE] = record_forward(network, rows(usual + 1))
            with suppress(Exception):
                found[ForwardMode(training=False, single=True)] = record_forward(
                    network, rows(1)
                )
    except CutError:
        raise
    except Exception as error:
        raise sample_error(network, sample, error) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    return _Survey(network, rows(usual), found, (usual + 1) / usual).outline()


@dataclass
class _Survey:
    """Two recordings of a network, on the way to its outline."""

    network: nn.Module
    sample: Tree
    recordings: dict[ForwardMode, Recording]
    ratio: float
    weights: dict[str, Tensor] = field(default_factory=dict)

    def outline(self) -> CutGraph:
        self.weights = dict(self.network.named_parameters()) | dict(
            self.network.named_buffers()
        )
        borders: list[dict[ForwardMode, Call]] = []
        refused: dict[str, tuple[str, ...]] = {}
        skipped: dict[str, str] = {}
        for calls in self._candidates(skipped):
            if problems := tuple(dict.fromkeys(self._problems(calls))):
                refused[calls[USUAL].name] = problems
            else:
                borders.append(calls)
        homes = self._homes(borders)
        return CutGraph(
            network=self.network,
            sample=self.sample,
            cut_points=tuple(self._border(calls) for calls in borders),
            refused=refused,
            skipped=skipped,
            homes=homes,
            stateless=self._stateless(borders),
        )

    def _candidates(self, skipped: dict[str, str]) -> Iterator[dict[ForwardMode, Call]]:
        """The calls before which a cut would divide something, in order."""
        firsts = {
            way: {call.name: call for call in reversed(recording.calls)}
            for way, recording in self.recordings.items()
        }
        done = min(c.end for c in self.recordings[USUAL].calls)
        before: Call | None = None
        last = -1
        for call in self.recordings[USUAL].calls:
            twin = firsts[MORE].get(call.name)
            if call.name in skipped:
                continue
            if reason := self._twice(call):
                skipped[call.name] = reason
            elif twin is None or twin.inside != call.inside or twin.start < last:
                skipped[call.name] = "in evaluation it is not called, or elsewhere"
            elif call.start <= done:
                skipped[call.name] = "the network begins with it"
            elif (
                before is not None
                and call.start == before.start + 1
                and before.name in call.inside
            ):
                skipped[call.name] = f"it begins where {before.name!r} does; cut before that"
                before = call
            else:
                before, last = call, twin.start
                yield {
                    way: found
                    for way, calls in firsts.items()
                    if (found := calls.get(call.name)) is not None
                    and found.inside == call.inside
                }

    def _twice(self, call: Call) -> str | None:
        """Which of the module and those it is called in is called more often than once."""
        for recording in self.recordings.values():
            for name in (call.name, *call.inside):
                times = sum(c.name == name for c in recording.calls)
                if times > 1:
                    return f"module {name!r} is called {times} times"
        return None

    def _problems(self, calls: dict[ForwardMode, Call]) -> Iterator[str]:
        """Why a stage cannot begin there."""
        for mode, call in calls.items():
            recording = self.recordings[mode]
            for name, (first, last) in recording.weights.items():
                if first < call.start <= last:
                    yield self._shared(name, recording)
            yield from _untraced(recording, call)
            yield from _edited(recording, call)
        yield from self._divided(calls)
        if self._sized(calls) and self._batch(calls) is None:
            yield "sizes of the inputs matter after it, and nothing that is sent shows them"

    def _shared(self, name: str, recording: Recording) -> str:
        tensor = self.weights[name]
        named = (self.network.named_parameters, self.network.named_buffers)
        names = [
            other
            for entries in named
            for other, t in entries(remove_duplicate=False)
            if t is tensor and other != name
        ]
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        if names:
            return (
                f"{kind} {name!r} is tied to {' and '.join(map(repr, names))}; cut so that "
                "both are in one stage, or build the network without the tie"
            )
        owner = name.rpartition(".")[0]
        times = sum(c.name == owner for c in recording.calls)
        if times > 1:
            return f"module {owner!r} is used {times} times; keep its uses in one stage"
        return f"{kind} {name!r} is used on both sides; keep its uses in one stage"

    def _divided(self, calls: dict[ForwardMode, Call]) -> Iterator[str]:
        """Buffers of one module that would be in two stages; they move to devices together."""
        for name in calls[USUAL].inside:
            module = self.network.get_submodule(name)
            sides = {
                recording.weights[full][0] < calls[mode].start
                for mode, recording in self.recordings.items()
                for full in (f"{name}.{own}".lstrip(".") for own in module._buffers)
                if full in recording.weights
            }
            if len(sides) > 1:
                who = f"module {name!r}" if name else "the network itself"
                yield f"{who} has buffers that are used on both sides"

    def _sized(self, calls: dict[ForwardMode, Call]) -> bool:
        for mode, call in calls.items():
            recording = self.recordings[mode]
            sent = {id(value) for value in _needed(recording, call)}
            for read in recording.reads:
                # After the call, of what is sent, sizes are seen as they are.
                early = read.event < call.start and read.frame in call.inside
                looked_at = (recording.values[place] for place in read.of)
                if early or any(v.made < call.start and id(v) not in sent for v in looked_at):
                    return True
        return False

    def _batch(self, calls: dict[ForwardMode, Call]) -> tuple[int, int] | None:
        """Where in what is sent the size of the batch shows: it changed as the batch's did."""
        sent = {m: _needed(self.recordings[m], c) for m, c in calls.items()}
        for place, (large, small) in enumerate(zip(sent[USUAL], sent[MORE], strict=False)):
            pairs = zip(large.shape, small.shape, strict=False)
            for dimension, (size, other) in enumerate(pairs):
                if size and other / size == self.ratio:
                    return place, dimension
        return None

    def _alike(
        self, usual: Sequence[Value], single: Sequence[Value], calls: dict[ForwardMode, Call]
    ) -> bool:
        """Whether a batch of one is known by its size, in the same place of what is sent."""
        batch = self._batch(calls)
        if batch is None or len(usual) != len(single):
            return False
        place, dimension = batch
        one, many = list(single[place].shape), list(usual[place].shape)
        count = batch_size(self.sample)
        one[dimension : dimension + 1] = [size * count for size in one[dimension:][:1]]
        return one == many

    def _border(self, calls: dict[ForwardMode, Call]) -> CutPoint:
        sent = _needed(self.recordings[USUAL], calls[USUAL])
        keys = {
            way: tuple(
                key
                for value in _needed(self.recordings[way], call)
                if (key := _key(value, call)) is not None
            )
            for way, call in calls.items()
            if not way.single or self._alike(sent, _needed(self.recordings[way], call), calls)
        }
        return CutPoint(
            name=calls[USUAL].name,
            inside=calls[USUAL].inside,
            keys=keys,
            numbers=sum(math.prod(value.shape) for value in sent),
            sized=self._sized(calls),
            shapes=tuple(value.shape for value in sent),
            batch=self._batch(calls),
        )

    def _homes(self, borders: Sequence[dict[ForwardMode, Call]]) -> dict[str, int]:
        """The layer in which each weight is used, or would be if it were."""
        homes: dict[str, int] = {}
        last = 0
        for name in self.weights:
            owner = name.rpartition(".")[0]
            for mode, recording in self.recordings.items():
                starts = [calls[mode].start for calls in borders]
                called = [c.start for c in recording.calls if c.name == owner and owner]
                if name in recording.weights:
                    last = bisect_right(starts, recording.weights[name][0])
                    break
                if called:
                    last = bisect_right(starts, called[0])
            homes[name] = last
        return homes

    def _stateless(
        self, borders: Sequence[dict[ForwardMode, Call]]
    ) -> dict[str, tuple[int, ...]]:
        starts = [calls[USUAL].start for calls in borders]
        found: dict[str, set[int]] = {}
        for call in self.recordings[USUAL].calls:
            module = self.network.get_submodule(call.name)
            if not any(True for _ in (*module.parameters(), *module.buffers())):
                found.setdefault(call.name, set()).add(bisect_right(starts, call.start))
        return {name: tuple(sorted(layers)) for name, layers in found.items()}


def _needed(recording: Recording, call: Call) -> list[Value]:
    """What was there before the call and is used after it."""
    return [v for v in recording.values if v.made < call.start <= v.last_use]


def _key(value: Value, call: Call) -> ValueKey | None:
    """The last name of the value in a forward that is at work when the call is made."""
    names = [
        key for key, event in value.keys if event < call.start and key.frame in call.inside
    ]
    return names[-1] if names else None


def _untraced(recording: Recording, call: Call) -> Iterator[str]:
    """Decisions and values that a stage that begins at the call could not know of."""
    for read in recording.reads:
        if read.values and read.event < call.start:
            yield f"what is done depends on numbers computed before it ({read.where})"
    for event, where in recording.strange:
        if call.start <= event:
            yield f"a tensor comes from where it cannot be followed to ({where})"
    for value in _needed(recording, call):
        if _key(value, call) is None:
            frame = value.keys[0][0].frame
            yield f"something computed inside {frame!r} is used without being returned"


def _edited(recording: Recording, call: Call) -> Iterator[str]:
    """Values of which one would be changed in place where the other is a copy."""
    needed = _needed(recording, call)
    shared = Counter(value.storage for value in needed)
    for value in needed:
        if shared[value.storage] > 1 and any(event >= call.start for event in value.changes):
            key = _key(value, call)
            yield (
                f"a tensor from {key.frame if key else ''!r} is changed in place after it, and "
                "a view of it is used as well; make that change out of place"
            )
