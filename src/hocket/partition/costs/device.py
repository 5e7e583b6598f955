"""Device of a stage: its speed, its memory, and the link to the next stage's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import matches_hint
from hocket.partition.costs.link import ONE_MACHINE, Link


@dataclass(frozen=True)
class Device:
    """Device of a stage.

    Attributes:
        speed: Speed relative to the machine on which layers are measured.
        memory_limit_mib: Memory that the stage may hold, in MiB.
        link: Link to the device of the next stage.

    Raises:
        OptionError: The speed is not a finite number above 0, the memory is not above 0, or the
            link is none.
    """

    speed: float = 1.0
    memory_limit_mib: float = math.inf
    link: Link = ONE_MACHINE

    def __post_init__(self) -> None:
        problems = []
        if not (matches_hint(self.speed, float) and self.speed > 0):
            problems.append(f"speed is {self.speed!r}; use a finite number above 0")
        limit = self.memory_limit_mib
        if not (limit == math.inf or (matches_hint(limit, float) and limit > 0)):
            problems.append(f"memory_limit_mib is {limit!r}; use a number above 0")
        if not isinstance(self.link, Link):
            problems.append(
                f"link is {self.link!r}; use a Link, such as Link.parse('10Gbit,50us')"
            )
        raise_problems(OptionError, "this device is impossible", problems)


def format_memory(needed_mib: Sequence[float], devices: Sequence[Device]) -> str:
    """Return the memory that each stage needs, rounded up, and what its device has.

    >>> format_memory([5.0, 7.001], [Device(), Device(memory_limit_mib=4.5)])
    'stage 0 needs 5 MiB and has no limit, stage 1 needs 7.01 MiB and has 4.5 MiB'
    """
    limits = (device.memory_limit_mib for device in devices)
    has = ("no limit" if limit == math.inf else f"{limit:g} MiB" for limit in limits)
    needs = (f"needs {math.ceil(100 * mib) / 100:g} MiB and has" for mib in needed_mib)
    pairs = zip(needs, has, strict=True)
    return ", ".join(f"stage {k} {needed} {limit}" for k, (needed, limit) in enumerate(pairs))
