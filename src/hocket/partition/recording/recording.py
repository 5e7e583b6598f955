"""Recording of a forward: its module calls, the values between them, the weights they use.

Time is counted in events: every call of a module, every return and every PyTorch function is
one event.
"""

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


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
        operands: Positions in ``Recording.values`` of its arguments.
    """

    frame: str
    event: int
    reason: str
    reads_elements: bool
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """Recording of one forward.

    Attributes:
        calls: Calls in the order of their starts; the first is the network's.
        values: Values in the order of their creation.
        weights: First and last use of each parameter and buffer, by its first name.
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
