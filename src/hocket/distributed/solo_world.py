"""A world of one process, so that nobody has to ask whether there are others."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from hocket.tree import Tree


class SoloFlags:
    """Flags that one process leaves for itself; see `StoreFlags`."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def new_name(self) -> str:
        """Return a name for flags; it is free once they are set."""
        return ""

    def set(self, name: str, value: str = "yes") -> None:
        """Set a flag of this process."""
        self._values[name] = value

    def values(self, name: str) -> list[str] | None:
        """Return the flags of all processes, once every one of them is set."""
        return [self._values[name]] if name in self._values else None


class SoloWorld:
    """This process where it trains alone: rank 0 of 1, which has all stages; see `World`.

    Attributes:
        rank: 0.
        size: 1.
        stage: 0.
        replica: 0.
        replicas: 1.
        is_main: True, as this process prints and writes files.
        reads_data: True, as this process has the first stage.
        rejoined: False, as there is nobody to return to.
        process_name: None, as a name would tell it from nobody.
        timeout_s: Infinity, as nobody is waited for.
        flags: Flags that are read by nobody else.
    """

    rank = 0
    size = 1
    stage = 0
    replica = 0
    replicas = 1
    is_main: Literal[True] = True
    reads_data: Literal[True] = True
    rejoined: Literal[False] = False
    process_name: None = None
    timeout_s = math.inf

    def __init__(self) -> None:
        self.flags = SoloFlags()

    def local_stages(self, count: int) -> range:
        """Return the numbers of the stages in this process: all of them."""
        return range(count)

    def agreement_store(self) -> None:
        """Return None, as there are no replicas that have to agree."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes: this one's."""
        return [value]

    def broadcast(self, tree: Tree) -> Tree:
        """Return the value of the first process, which is this one."""
        return tree

    def collect_weights(self, modules: Sequence[nn.Module]) -> None:
        """Do nothing: all weights are here."""

    def clock_offset(self) -> float:
        """Return the seconds by which the first process's clock is ahead: 0."""
        return 0.0

    def report_failure(self, error: BaseException) -> None:
        """Do nothing: there is nobody to tell."""
