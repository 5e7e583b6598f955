"""T3 of PipeMare: the first updates are synchronous, as the pipeline is flushed before each.

Reference: Yang et al., MLSys 2021, arXiv 1910.05124, technique 3. Plain version:
``tests/reference/pipedream.py``. It is a matter of the program:

>>> from hocket.methods import PipeDream
>>> from hocket.program import format_program, unroll
>>> method = PipeDream().with_remedies(T3(updates=2))
>>> print(format_program(unroll(method, stages=3, batches=5), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0 U0
   1 |             | B0 U0       |
   2 | B0 U0       |             |
   3 | F1          | F1          | F1 B1 U1
   4 |             | B1 U1       |
   5 | B1 U1       |             |
   6 | F2          | F2          | F2 B2 U2
   7 | F3          | F3 B2 U2    | F3 B3 U3
   8 | F4 B2 U2    | F4 B3 U3    | F4 B4 U4
   9 | B3 U3       | B4 U4       |
  10 | B4 U4       |             |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class T3(Remedy):
    """Let the pipeline be empty at each of the first updates, as in back-propagation.

    A batch enters after the update with the group of ``accumulate`` batches before it. Other
    remedies act as if the training began with the first update that may be late.

    Attributes:
        updates: Number of these updates; 0 for no effect.

    Raises:
        OptionError: It is no number of updates.
    """

    name: ClassVar[str] = "t3"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"updates": Range(least=0)}
    updates: int = 1000

    @property
    def flushed_updates(self) -> int:
        """First updates before each of which the pipeline is flushed."""
        return self.updates

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """Attach nothing: the stages follow the program."""
        return StageRemedy()


REMEDIES = {T3.name: T3}
