"""Times and outer step of rare meetings of replicas, by the names of their papers.

This module imports no PyTorch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from hocket.errors import OptionError, raise_problems, unknown_name
from hocket.options.hints import wrong_arguments, wrong_fields
from hocket.options.named import Named
from hocket.options.ranges import Range, out_of_range

RANGES = {
    "every": Range(least=1),
    "outer_lr": Range(above=0),
    "outer_momentum": Range(least=0, below=1),
    "fragments": Range(least=1),
    "overlap": Range(least=0),
}


@dataclass(frozen=True, kw_only=True)
class Meet:
    """Times and outer step of the meetings.

    Attributes:
        every: Updates of a stage between two meetings.
        outer_lr: Learning rate of the outer step.
        outer_momentum: Nesterov momentum of the outer step; 0 for none.
        fragments: Parts of the stage's weights, which meet in turn.
        overlap: Updates after which the result of a meeting is applied.

    Raises:
        OptionError: A number is out of its range, or contradicts ``every``.
    """

    every: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    fragments: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        problems = wrong_fields(self) or out_of_range(self, RANGES)
        if not problems and self.fragments > self.every:
            problems.append(
                f"fragments is {self.fragments} and every is {self.every}, but at most one "
                "fragment meets after an update; use at most as many fragments"
            )
        if not problems and self.overlap >= self.every:
            problems.append(
                f"overlap is {self.overlap} and every is {self.every}, so that a fragment "
                "would meet again before its last result is applied; use a smaller overlap"
            )
        raise_problems(OptionError, "replicas cannot meet like this", problems)


def local_sgd(every: int = 64, fragments: int = 1, overlap: int = 0) -> Meet:
    """Set the weights to their mean (Stich, arXiv 1805.09767, algorithm 1).

    Options: see `Meet`.
    """
    return Meet(every=every, fragments=fragments, overlap=overlap)


MEETINGS: Mapping[str, Callable[..., Meet]] = MappingProxyType(
    {
        "local-sgd": local_sgd,
        # A step of SGD with Nesterov momentum along the mean of the outer gradients: Douillard
        # et al., arXiv 2311.08105, algorithm 1; with fragments and overlap Streaming DiLoCo,
        # arXiv 2501.18512, algorithm 2.
        "diloco": partial(Meet, every=64, outer_lr=0.7, outer_momentum=0.9),
    }
)


def as_meet(text: str | None) -> Meet | None:
    """Return the meetings that a text names; None for ``none`` or None.

    Args:
        text: Text such as ``local-sgd:every=64``.

    Raises:
        OptionError: The name or an option does not exist, or a value is out of range.

    >>> as_meet("local-sgd:every=8")
    Meet(every=8, outer_lr=1.0, outer_momentum=0.0, fragments=1, overlap=0)
    """
    if text in (None, "none"):
        return None
    if not isinstance(text, str):
        raise OptionError(f"meet is {text!r}; use text such as 'local-sgd:every=64'")
    asked = Named.parse(text)
    if asked.name not in MEETINGS:
        raise OptionError(unknown_name("meeting", asked.name, MEETINGS))
    build = MEETINGS[asked.name]
    problems = wrong_arguments(build, asked.options)
    raise_problems(OptionError, f"replicas cannot meet by {asked.name!r}", problems)
    return build(**asked.options)
