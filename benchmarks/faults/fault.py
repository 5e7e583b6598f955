"""A fault at a stage and a tick."""

from dataclasses import dataclass

from benchmarks.faults.expectations import EXPECTATIONS
from hocket.errors import OptionError, unknown_name


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
                f"'{self}' cannot happen, as it is a fault of the start; use tick 0"
            )

    def __str__(self) -> str:
        return f"{self.kind} stage {self.stage} at tick {self.tick}"
