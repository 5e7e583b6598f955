"""Model of the link between two stages, for the time that a packet takes."""

import re
from dataclasses import dataclass

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range

LINK_RANGES = {"bytes_per_s": Range(above=0), "latency_s": Range(least=0)}
"""Ranges of the numbers of a link."""
_SECONDS = {"s": "e0", "ms": "e-3", "us": "e-6", "ns": "e-9"}
_BITS = {"": "e0", "k": "e3", "M": "e6", "G": "e9", "T": "e12"}


@dataclass(frozen=True)
class Link:
    """Link between neighbouring stages, in each direction.

    Attributes:
        bytes_per_s: Bandwidth in bytes per second.
        latency_s: Time of an empty packet, in seconds.

    Raises:
        OptionError: The bandwidth is not above 0, the latency is below 0, or one of them is not
            finite.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, LINK_RANGES)
        raise_problems(OptionError, "this link is impossible", problems)

    def seconds(self, size: float) -> float:
        """Return the time of a packet of this size in bytes, in seconds.

        >>> Link(bytes_per_s=1e9, latency_s=1e-3).seconds(2e6)
        0.003
        """
        return self.latency_s + size / self.bytes_per_s

    @staticmethod
    def parse(text: str) -> "Link":
        """Parse a link written as bits per second and a latency.

        Raises:
            OptionError: The text has another form, or the bandwidth is 0 or not finite.

        >>> Link.parse("10Gbit,50us")
        Link(bytes_per_s=1250000000.0, latency_s=5e-05)
        """
        number = r"(\d+(?:\.\d+)?)"
        match = re.fullmatch(rf"{number}([kMGT]?)bit(?:,{number}(s|ms|us|ns))?", str(text))
        if match is None:
            raise OptionError(
                f"the link is {text!r}; write bits per second and a latency: 10Gbit,50us"
            )
        bits = float(match[1] + _BITS[match[2]])
        latency_s = float(match[3] + _SECONDS[match[4]]) if match[3] else 0.0
        return Link(bits / 8, latency_s)


# Between two processes of the machine of the records in this repository: 4.2 MB in 3.1 ms.
ONE_MACHINE = Link(bytes_per_s=1.4e9, latency_s=1e-4)
