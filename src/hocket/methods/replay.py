"""Choices of the buffer from which a free-running stage draws its inputs."""

from dataclasses import dataclass
from typing import Literal

from hocket.errors import OptionError, format_problems
from hocket.options import Range, out_of_range, wrong_fields

Sampler = Literal["freshest", "official"]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Buffer from which a free-running stage draws its inputs.

    Attributes:
        buffer: Number of the last arrived batches that are kept (the paper's M).
        reuse: Limit on the uses of each batch; 0 for no limit.
        sampler: ``freshest`` draws the freshest of the least used batches, as in the paper;
            ``official`` follows the authors' code, where the oldest of them is drawn, a limit
            allows one use less, and a buffer of one does not count uses.

    Raises:
        OptionError: A choice is out of its range.
    """

    buffer: int = 5
    reuse: int = 0
    sampler: Sampler = "freshest"

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        problems += out_of_range(self, {"buffer": Range(least=1), "reuse": Range(least=0)})
        if self.sampler == "official" and self.reuse == 1:
            problems.append(
                "reuse is 1 with the official sampler, which counts from 1, so that nothing "
                "could ever be drawn; use at least 2"
            )
        if problems:
            raise OptionError(format_problems("this replay is impossible", problems))
