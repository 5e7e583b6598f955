"""What is promised of each kind of fault: the table that trials are judged by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hocket.distributed.restart import UNMEETABLE
from hocket.errors import HangError, NonFiniteError, TransitError

End = Literal["goes on", "is started again", "ends"]
GOES_ON: End = "goes on"
AGAIN: End = "is started again"
ENDS: End = "ends"
KILLED = 137
TERMINATED = 143


@dataclass(frozen=True)
class Expectation:
    """What a job does when a fault happens; its last bits are always those without the fault.

    Attributes:
        what: What happens, in words.
        job: Whether it goes on as if nothing had been, ends and is started again by itself
            from its last checkpoint, or ends and goes on once it is resumed.
        says: What is then said, a pattern with ``{stage}`` for the stage of the fault.
        codes: With which exit code it ends, before it goes on.
        waits: Whether it takes a time-out to notice.
        neighbours: Whether it takes a neighbour to notice, so that one stage alone cannot.
    """

    what: str
    job: End
    says: str = ""
    codes: tuple[int, ...] = ()
    waits: bool = False
    neighbours: bool = False


_HANG = HangError.exit_code
_TRANSIT = TransitError.exit_code


def _killed(what: str) -> Expectation:
    return Expectation(what, AGAIN, r"process {stage} was ended by SIGKILL", (KILLED,))


def _hung(what: str, says: str) -> Expectation:
    return Expectation(what, AGAIN, says, (_HANG,), waits=True, neighbours=True)


def _failed(what: str, error: type[Exception] = Exception) -> Expectation:
    says = r"process {stage} of \d+ failed:(?s:.*)\(stage {stage}, batch"
    return Expectation(what, ENDS, says, (getattr(error, "exit_code", 1),))


def _mistaken(what: str) -> Expectation:
    says = r"stage \d+, from stage {stage}[:,]"
    return Expectation(what, AGAIN, says, (_TRANSIT,), neighbours=True)


_SILENT = r"stage {stage} does not answer: it is stopped"

PROMISES: Mapping[str, Expectation] = {
    "kill": _killed("SIGKILL"),
    "kill writing of": _killed("SIGKILL with half of a checkpoint's part written"),
    "kill sealing of": _killed("SIGKILL before a checkpoint has its manifest"),
    "stop": _hung("SIGSTOP", _SILENT),
    "hold interpreter of": _hung("C code that keeps Python's lock", _SILENT),
    "hang": _hung("a wait without an end", r"stage {stage} has been executing"),
    "pause": Expectation("SIGSTOP, and SIGCONT a little later", GOES_ON),
    "terminate": Expectation("SIGTERM", ENDS, codes=(TERMINATED,)),
    "raise in": _failed("an exception in a layer"),
    "make NaN in": _failed("a gradient that is not a number", NonFiniteError),
    "exhaust memory of": _failed("a layer that wants more memory than there is"),
    # Where all keep step nothing comes after a packet that was lost, and all wait.
    "drop packet of": Expectation(
        "a packet is not sent",
        AGAIN,
        r"from stage {stage}\b",
        (_TRANSIT, _HANG),
        waits=True,
        neighbours=True,
    ),
    "double packet of": _mistaken("a packet is sent twice"),
    "mislabel packet of": _mistaken("a packet has the number of the next batch"),
    "damage packet of": _mistaken("a packet arrives with another bit"),
    "delay packet of": Expectation("a packet is sent a little later", GOES_ON, neighbours=True),
    "lose rendezvous of": Expectation(
        "the folder in which processes meet is taken away",
        AGAIN,
        r"through which the processes meet, was taken away",
        (UNMEETABLE,),
        neighbours=True,  # one stage alone has nobody to meet, and may end before it is seen
    ),
    "fill disk of": Expectation(
        "no room for a part of a checkpoint",
        GOES_ON,
        r"cannot write the checkpoint .*: No space left",
    ),
}
