"""What a network did with a sample: its calls, the values between them, the weights they read.

Time is counted in events: every call, return and function of PyTorch is one.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple


class ValueKey(NamedTuple):
    """How a stage knows a value that another stage has computed.

    Attributes:
        frame: Name of the module whose forward it came up in.
        path: A checksum of all calls and functions of that forward until then; 0 for inputs.
            Another path of the forward gives other keys, and is noticed.
        place: Which tensor of the result it is.
    """

    frame: str
    path: int
    place: int


@dataclass
class Frame:
    """A forward at work, and the path that it has taken.

    Attributes:
        name: Of the module.
        path: The checksum of its calls and functions until now.
    """

    name: str
    path: int = 0

    def step(self, name: str) -> int:
        """Note a call or function of this name; gives the path until then, with it."""
        self.path = zlib.crc32(name.encode(), self.path)
        return self.path


@dataclass(frozen=True)
class Call:
    """A call of a module.

    Attributes:
        name: Of the module.
        start: Event at which it was called.
        end: Event at which it returned.
        inside: The modules whose forward was at work, from the network itself to the caller.
    """

    name: str
    start: int
    end: int
    inside: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A tensor that depends on inputs, weights or chance.

    Attributes:
        keys: Under which names it came up, and at which event, in order.
        made: The event at which it came up.
        last_use: The last event that needed its numbers; -1 if none did.
        changes: The events that changed it in place.
        storage: What it shares with views of itself.
        shape: Its sizes.
    """

    keys: tuple[tuple[ValueKey, int], ...]
    made: int
    last_use: float
    changes: tuple[int, ...]
    storage: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Read:
    """A look at a tensor whose answer is no tensor.

    Attributes:
        frame: The module whose forward looked.
        event: When.
        where: The line of code.
        values: Whether the answer depends on numbers, or only on sizes.
        of: Places in ``Recording.values`` of what it looked at.
    """

    frame: str
    event: int
    where: str
    values: bool
    of: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """All of one forward.

    Attributes:
        calls: In the order of their starts; the first is the network.
        values: In the order in which they came up.
        weights: Of each parameter and buffer, by its first name, the first and last use.
        reads: In order.
        strange: Events at which something with a graph was used that came from nowhere, and
            the lines of code.
    """

    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    weights: dict[str, tuple[int, int]]
    reads: tuple[Read, ...]
    strange: tuple[tuple[int, str], ...]


class ForwardMode(NamedTuple):
    """What decides which way a forward takes, as far as it is tried out.

    Attributes:
        training: Whether the network is in training mode.
        single: Whether the batch has one input only, which many a forward treats by itself.
    """

    training: bool
    single: bool


USUAL = ForwardMode(training=True, single=False)
