"""Options of a plan for unequal devices. Help needs no PyTorch, so it is imported late."""

import math
import re
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from hocket.errors import OptionError
from hocket.options.named import parse_numbers

if TYPE_CHECKING:
    from hocket.partition.costs.device import Device

_THOUSANDS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices of the stages in their order, as text; a single value is for all of them."""

    speeds: str = "1"
    """Speed of each stage's device, relative to this machine: 1,0.5 if the second is half as
    fast."""
    memory: str = "none"
    """Memory of each stage's device: 8GiB,4GiB. The network is cut so that the stages fit, and
    forecasts of stages that do not are not recommended."""
    link: str = "11.2Gbit,100us"
    """Link from each stage to the next, as rate and latency: 10Gbit,50us,1Gbit,2ms between
    three stages. The default is between processes of one machine."""

    @property
    def stages(self) -> int | None:
        """Number of stages that they are for; None for any number."""
        edges = len(_split_links(self.link))
        commas = self.speeds.count(","), self.memory.count(","), edges if edges > 1 else 0
        return 1 + max(commas) if any(commas) else None

    def for_stages(self, stages: int) -> "tuple[Device, ...]":
        """Return the device of each stage.

        Raises:
            OptionError: A value cannot be read, or is out of its range, or there are values for
                another number of stages.

        >>> devices = Devices(speeds="1,0.5,2", memory="4GiB", link="1Gbit,2ms,8kbit")
        >>> first, second, _ = devices.for_stages(3)
        >>> second.speed, second.memory_limit_mib, second.link.bytes_per_s
        (0.5, 4096.0, 1000.0)
        >>> first.link
        Link(bytes_per_s=125000000.0, latency_s=0.002)
        """
        from hocket.partition.costs.device import Device
        from hocket.partition.costs.link import Link

        speeds = parse_numbers(self.speeds, "speeds", "numbers above 0: 1,0.5", float)
        memory_mib = [_parse_mib(size) for size in self.memory.split(",")]
        links = [Link.parse(each) for each in _split_links(self.link)]
        for name, values, wanted in (
            ("speeds", speeds, stages),
            ("memory", memory_mib, stages),
            ("link", links, stages - 1),
        ):
            if len(values) not in (1, wanted):
                told = f"{name} has {len(values)} values for {stages} stages"
                raise OptionError(f"{told}; give {wanted}, or one for all")
        endless = map(Device, cycle(speeds), cycle(memory_mib), cycle(links))
        return tuple(islice(endless, stages))


ALIKE = Devices()
"""Devices as fast as this machine, without a limit of memory."""


def _split_links(text: str) -> list[str]:
    """Split links at commas, but not before their latencies."""
    return re.split(",(?=[^,]*bit)", text)


def _parse_mib(text: str) -> float:
    """Return the MiB of a size in bytes; infinity for ``none``.

    Raises:
        OptionError: The text has another form.
    """
    if text == "none":
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMGT]?)(i?)B", text)
    if match is None:
        raise OptionError(f"memory is {text!r}; write bytes with a unit: 8GiB or 500MB")
    unit: int = (1024 if match[3] else 1000) ** _THOUSANDS[match[2]]
    return float(match[1]) * unit / 2**20
