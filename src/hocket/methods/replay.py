"""Choices of the buffer from which a free-running stage draws its inputs."""

from dataclasses import dataclass

from hocket.errors import OptionError, format_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Buffer from which a free-running stage draws its inputs, the least used batch first.

    Attributes:
        buffer: Number of the last arrived batches that are kept (the paper's M).
        reuse: Limit on the uses of each batch; 0 for no limit.

    Raises:
        OptionError: A choice is out of its range.
    """

    buffer: int = 5
    reuse: int = 0

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        problems += out_of_range(self, {"buffer": Range(least=1), "reuse": Range(least=0)})
        if problems:
            raise OptionError(format_problems("this replay is impossible", problems))
