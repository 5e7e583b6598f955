"""Recording of a forward: its module calls, the values between them, the weights they use.

Time is counted in events: every call of a module, every return and every PyTorch function is
one event.
"""

import math
import zlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")


class ValueKey(NamedTuple):
    """Identity of a tensor in a forward, which is the same in every stage.

    Attributes:
        frame: Name of the module whose forward produced it.
        path: Checksum of all calls and functions of that forward so far, without functions of
            constants; 0 for inputs. If the forward takes another path, its keys differ, and the
            difference is detected.
        position: Position of the tensor in the result.
    """

    frame: str
    path: int
    position: int


@dataclass
class Frame:
    """A running forward and the path that it has taken.

    Attributes:
        name: Name of its module.
        path: Checksum of its calls and functions so far.
    """

    name: str
    path: int = 0

    def step(self, name: str) -> int:
        """Add a call or function of this name to the path, and return the new path."""
        self.path = zlib.crc32(name.encode(), self.path)
        return self.path


@dataclass(frozen=True)
class Call:
    """A call of a module.

    Attributes:
        name: Name of the module.
        start: Event at which it was called.
        end: Event at which it returned.
        callers: Modules whose forward was running, from the network itself to the caller.
        checkpointed: Whether it is inside an activation checkpoint, and does not begin it.
    """

    name: str
    start: int
    end: int
    callers: tuple[str, ...]
    checkpointed: bool


@dataclass(eq=False)
class Value:
    """A tensor that depends on inputs, weights or random numbers.

    Attributes:
        origin: Modules whose forwards computed it from discrete inputs; None if it depends on
            more.
        last_use: Last event that needed its elements; -1 if none did.
        keys: Keys under which it was registered, each with its event, in order.
        mutations: Events that changed it in place.
        storage: Identity of its storage, which it shares with its views.
        shape: Shape of the tensor.
    """

    origin: frozenset[str] | None = None
    last_use: float = -1
    keys: list[tuple[ValueKey, int]] = field(default_factory=list)
    mutations: list[int] = field(default_factory=list)
    storage: int = 0
    shape: tuple[int, ...] = ()

    def register(self, key: ValueKey, event: int, tensor: Tensor) -> None:
        """Add a key under which the tensor is known from an event on, as it is then.

        Args:
            key: The key.
            event: Number of the event.
            tensor: The tensor.
        """
        self.keys.append((key, event))
        self.storage = tensor.untyped_storage()._cdata
        self.shape = tuple(tensor.shape)

    @property
    def created(self) -> int:
        """Event of the first registration."""
        return self.keys[0][1]


@dataclass(frozen=True)
class TensorQuery:
    """A function of a tensor whose result is not a tensor, such as its size.

    Attributes:
        frame: Module whose forward called the function.
        event: Event of the call.
        reason: Reason against a stage that begins after it, if the result depends on elements.
        reads_elements: Whether the result depends on elements, not only on shapes.
        operands: The values among its arguments.
    """

    frame: str
    event: int
    reason: str
    reads_elements: bool
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Recording:
    """Recording of one forward.

    Attributes:
        calls: Calls in the order of their starts; the first is the network's.
        values: Values in the order of their creation.
        weights: First and last use of each parameter and buffer, by its first name, in the
            order of the first uses.
        queries: Queries in order.
        untracked: Events that used a tensor with a graph but of unknown origin, and their lines
            of code.
        repeated: Modules whose forwards read elements of tensors that depend on nothing but
            discrete inputs of the network, or compute such tensors. A stage that gets these
            inputs can repeat this code and decides the same.
    """

    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    weights: dict[str, tuple[int, int]]
    queries: tuple[TensorQuery, ...]
    untracked: tuple[tuple[int, str], ...]
    repeated: frozenset[str]

    @cached_property
    def first_calls(self) -> dict[str, Call]:
        """The first call of each module, by its name."""
        return {call.name: call for call in reversed(self.calls)}

    @cached_property
    def call_counts(self) -> Counter[str]:
        """The number of calls of each module, by its name."""
        return Counter(call.name for call in self.calls)

    def needs_sizes(self, call: Call) -> bool:
        """Return True if a forward that begins at a call needs sizes that it is not sent."""
        # Queries after the call see the actual sizes of the values that are sent.
        early = any(
            self._first_queries.get(name, math.inf) < call.start for name in call.callers
        )
        return early or self._first_lost < call.start

    @cached_property
    def _first_queries(self) -> dict[str, int]:
        """The event of the first query in the forward of each module."""
        return {query.frame: query.event for query in reversed(self.queries)}

    @cached_property
    def _first_lost(self) -> float:
        """The event after which the first of the values that are queried is used no more."""
        queried = (value for query in self.queries for value in query.operands)
        return min((max(value.created, value.last_use) for value in queried), default=math.inf)

    @cached_property
    def values_across(self) -> dict[int, list[Value]]:
        """Values created before each only call and used after it, by the start of the call."""
        return self._find_across((v.created, v.last_use, v) for v in self.values)

    @cached_property
    def weights_across(self) -> dict[int, list[str]]:
        """First names of the weights used before and after each only call, by its start."""
        return self._find_across((*uses, name) for name, uses in self.weights.items())

    def _find_across(self, spans: Iterable[tuple[int, float, T]]) -> dict[int, list[T]]:
        """Return what begins before and ends after each only call, by the start of the call.

        Args:
            spans: First event, last event and the thing itself, in the order of first events.
        """
        found: dict[int, list[T]] = {}
        ahead, running = deque(spans), list[tuple[int, float, T]]()
        for call in self.calls:
            if self.call_counts[call.name] == 1:
                while ahead and ahead[0][0] < call.start:
                    running.append(ahead.popleft())
                running = [span for span in running if call.start <= span[1]]
                found[call.start] = [thing for _, _, thing in running]
        return found


class ForwardMode(NamedTuple):
    """Conditions on which a forward may branch, as far as they are tried on the sample.

    Attributes:
        training: Whether the network is in training mode.
        single: Whether the batch has only one input, which many networks treat differently.
    """

    training: bool
    single: bool


TRAINING = ForwardMode(training=True, single=False)
EVALUATION = ForwardMode(training=False, single=False)
