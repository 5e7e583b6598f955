"""PipeDream: one forward and one backward in turn, both at the weights of the batch's forward.

Reference: Harlap et al., arXiv 1806.03377; Narayanan et al., SOSP 2019. Plain version:
``tests/reference/pipedream.py``. Stage k forwards K-1-k batches, then one forward and one
backward in turn. DDG, which has another name and paper, does its actions in this order; as
stages wait for packets and not for ticks, both are the same method, action by action.

>>> from hocket.program import format_program, unroll
>>> print(format_program(unroll(PipeDream(), stages=3, batches=3), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0          | F0          | F0 B0 U0
   1 | F1          | F1 B0 U0    | F1 B1 U1
   2 | F2 B0 U0    | F2 B1 U1    | F2 B2 U2
   3 | B1 U1       | B2 U2       |
   4 | B2 U2       |             |

With vertical sync all stages forward a batch with the same version of the weights, so that its
gradient is the whole network's, K-1 updates before:

>>> print(format_program(unroll(PipeDream(hold="vertical"), stages=3, batches=4), stages=3))
tick | stage 0     | stage 1     | stage 2
   0 | F0@0        | F0@0        | F0@0 B0 U0
   1 | F1@0        | F1@0 B0 U0  | F1@0 B1 U1
   2 | F2@0 B0 U0  | F2@0 B1 U1  | F2@0 B2 U2
   3 | F3@1 B1 U1  | F3@1 B2 U2  | F3@1 B3 U3
   4 | B2 U2       | B3 U3       |
   5 | B3 U3       |             |
"""

from hocket.methods.method import EpochEnd, Hold, Linearize, Method, preset
from hocket.remedies import T1
from hocket.signals import Delayed


@preset("arXiv 1806.03377", Delayed)
def PipeDream(
    *,
    linearize: Linearize = "stash",
    hold: Hold = "newest",
    forward_delay: int = 0,
    backward_delay: int = 1,
    epoch_end: EpochEnd = "drain",
    name: str = "pipedream",
) -> Method:
    """Build PipeDream's pipeline with weight stashing.

    Other options: see `Method`.

    Args:
        linearize: Weights that a late gradient is applied at; weight stashing is ``stash``.
        hold: Version of its weights that a stage forwards with: its ``newest``, or the newest
            that every stage has (``vertical`` sync).
        epoch_end: ``carry`` batches in flight into the next epoch, or ``drain`` them, as the
            authors' code does.

    Raises:
        OptionError: An option is out of range.

    >>> [PipeDream().staleness(stage, stages=4) for stage in range(4)]
    [3.0, 2.0, 1.0, 0.0]
    """


def PipeDreamLR(*, anneal: int = 1000, epoch_end: EpochEnd = "drain") -> Method:
    """Build PipeDream with learning rates that begin divided by the staleness.

    It is the baseline of that name in arXiv 2505.01099 and 2602.03515: T1 of PipeMare on top of
    weight stashing.

    Other options: see `Method`.

    Args:
        anneal: Updates until the learning rates reach PipeDream's.

    Raises:
        OptionError: An option is out of range.
    """
    return PipeDream(epoch_end=epoch_end, name="pipedream-lr").with_remedies(T1(anneal=anneal))


PRESETS = {"pipedream": PipeDream, "pipedream-lr": PipeDreamLR}
