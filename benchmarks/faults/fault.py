"""One thing that goes wrong, at a stage and a tick: a value that can be printed and read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.faults.promise import PROMISES
from hocket.errors import OptionError, unknown

_FORM = re.compile(r"(?P<kind>[\w ]+) stage (?P<stage>\d+) at tick (?P<tick>\d+)")


@dataclass(frozen=True)
class Fault:
    """What happens, where, and when at the earliest.

    Attributes:
        kind: What happens, one of `PROMISES`.
        stage: Whose process it happens to; a packet is one that it sends.
        tick: It happens at the first occasion from this tick on; what can at 0 does before
            the processes have met.

    Raises:
        OptionError: There is no such kind.
    """

    kind: str
    stage: int
    tick: int

    def __post_init__(self) -> None:
        if self.kind not in PROMISES:
            raise OptionError(unknown("fault", self.kind, PROMISES))

    def __str__(self) -> str:
        return f"{self.kind} stage {self.stage} at tick {self.tick}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """Read what was printed.

        Raises:
            OptionError: It is not of that form.

        >>> Fault.parse("drop packet of stage 1 at tick 37")
        Fault(kind='drop packet of', stage=1, tick=37)
        """
        if (found := _FORM.fullmatch(text.strip())) is None:
            raise OptionError(
                f"cannot read the fault {text!r}; write, for example, 'kill stage 1 at tick 37'"
            )
        return Fault(found["kind"], int(found["stage"]), int(found["tick"]))


def schedule(text: str) -> tuple[Fault, ...]:
    """Several faults, each of which happens once.

    >>> [str(fault) for fault in schedule("kill stage 0 at tick 3; stop stage 1 at tick 9")]
    ['kill stage 0 at tick 3', 'stop stage 1 at tick 9']
    """
    return tuple(map(Fault.parse, text.split(";")))


def format_schedule(faults: Iterable[Fault]) -> str:
    """The text of a schedule."""
    return "; ".join(map(str, faults))
