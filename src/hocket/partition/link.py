"""How long a packet takes from one stage to the next."""

import re
from dataclasses import dataclass

from hocket.errors import OptionError

_SECONDS = {"s": "e0", "ms": "e-3", "us": "e-6", "ns": "e-9"}
_BITS = {"": "e0", "k": "e3", "M": "e6", "G": "e9", "T": "e12"}


@dataclass(frozen=True)
class Link:
    """What carries packets between neighbours, each way.

    Attributes:
        bytes_per_s: Bytes in a second.
        latency_s: What the smallest packet takes, in seconds.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def seconds(self, size: float) -> float:
        """The time of a packet of so many bytes.

        >>> Link(bytes_per_s=1e9, latency_s=1e-3).seconds(2e6)
        0.003
        """
        return self.latency_s + size / self.bytes_per_s

    @staticmethod
    def parse(text: str) -> "Link":
        """The link that is written as bits in a second and a latency.

        Raises:
            OptionError: The text is of another form.

        >>> Link.parse("10Gbit,50us")
        Link(bytes_per_s=1250000000.0, latency_s=5e-05)
        """
        number = r"(\d+(?:\.\d+)?)"
        found = re.fullmatch(rf"{number}([kMGT]?)bit(?:,{number}(s|ms|us|ns))?", text)
        if found is None:
            raise OptionError(
                f"the link is {text!r}; write bits in a second and a latency: 10Gbit,50us"
            )
        bits = float(found[1] + _BITS[found[2]])
        latency_s = float(found[3] + _SECONDS[found[4]]) if found[3] else 0.0
        if bits <= 0:
            raise OptionError(f"the link {text!r} carries nothing; give more than 0 bits")
        return Link(bits / 8, latency_s)


# Between two processes of the machine that the records were made on: 4.2 MB in 3.1 ms.
ONE_MACHINE = Link(bytes_per_s=1.4e9, latency_s=1e-4)
