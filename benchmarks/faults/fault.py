"""A fault at a stage and a tick, which can be formatted and parsed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.faults.expectations import EXPECTATIONS
from hocket.errors import OptionError, unknown_name

_FORM = re.compile(r"(?P<kind>[\w ]+) stage (?P<stage>\d+) at tick (?P<tick>\d+)")


@dataclass(frozen=True)
class Fault:
    """A kind of fault with its stage and its earliest tick.

    Attributes:
        kind: Kind of the fault, a key of `EXPECTATIONS`.
        stage: Stage to whose process it happens; a packet is one that this stage sends.
        tick: It happens at the first opportunity from this tick on. Tick 0 is before the
            processes have met.

    Raises:
        OptionError: There is no such kind, or it happens at the start only.
    """

    kind: str
    stage: int
    tick: int

    def __post_init__(self) -> None:
        if self.kind not in EXPECTATIONS:
            raise OptionError(unknown_name("fault", self.kind, EXPECTATIONS))
        if EXPECTATIONS[self.kind].at_start and self.tick:
            raise OptionError(
                f"'{self}' cannot happen, as it is a fault of the start; write 'at tick 0'"
            )

    def __str__(self) -> str:
        return f"{self.kind} stage {self.stage} at tick {self.tick}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """Parse the text of a fault.

        Raises:
            OptionError: The text has another form.

        >>> Fault.parse("drop packet of stage 1 at tick 37")
        Fault(kind='drop packet of', stage=1, tick=37)
        """
        if (match := _FORM.fullmatch(text.strip())) is None:
            raise OptionError(
                f"cannot read the fault {text!r}; write, for example, 'kill stage 1 at tick 37'"
            )
        return Fault(match["kind"], int(match["stage"]), int(match["tick"]))


def parse_schedule(text: str) -> tuple[Fault, ...]:
    """Parse several faults, each of which happens once.

    >>> faults = parse_schedule("kill stage 0 at tick 3; stop stage 1 at tick 9")
    >>> [str(fault) for fault in faults]
    ['kill stage 0 at tick 3', 'stop stage 1 at tick 9']
    """
    return tuple(map(Fault.parse, text.split(";")))


def format_schedule(faults: Iterable[Fault]) -> str:
    """Return the text of several faults."""
    return "; ".join(map(str, faults))
