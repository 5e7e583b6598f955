"""The documented guarantee for each kind of fault, with which trials are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hocket.distributed.folder.restart import RENDEZVOUS_LOST
from hocket.errors import HangError, NonFiniteError, PeerLostError, TransitError

Ending = Literal["goes on", "is started again", "ends"]
CONTINUES: Ending = "goes on"
RESTARTS: Ending = "is started again"
ENDS: Ending = "ends"
KILLED = 137
TERMINATED = 143


@dataclass(frozen=True)
class Expectation:
    """Behaviour of a job under a fault; its final weights always equal those without faults.

    Attributes:
        description: The fault.
        ending: Whether the job continues, is restarted automatically from its last checkpoint,
            or ends and can be resumed.
        message: Pattern of the message, with ``{stage}`` for the stage of the fault.
        exit_codes: Exit codes with which the job may end.
        needs_timeout: Whether the fault is detected by a time-out.
        needs_neighbour: Whether the fault needs a neighbouring stage to be detected.
        outlasts_timeout: Whether the fault takes longer than ``timeout_s``, and is no hang.
        at_start: Whether the fault happens before the first tick only.
    """

    description: str
    ending: Ending
    message: str = ""
    exit_codes: tuple[int, ...] = ()
    needs_timeout: bool = False
    needs_neighbour: bool = False
    outlasts_timeout: bool = False
    at_start: bool = False


_HANG = HangError.exit_code
_TRANSIT = TransitError.exit_code


def _killed(description: str) -> Expectation:
    return Expectation(
        description, RESTARTS, r"process {stage} was ended by SIGKILL", (KILLED,)
    )


def _hung(description: str, message: str, *, at_start: bool = False) -> Expectation:
    return Expectation(
        description,
        RESTARTS,
        message,
        (_HANG,),
        needs_timeout=True,
        needs_neighbour=True,
        at_start=at_start,
    )


def _outlasted(description: str) -> Expectation:
    return Expectation(description, CONTINUES, needs_neighbour=True, outlasts_timeout=True)


def _failed(description: str, error: type[Exception] = Exception) -> Expectation:
    message = r"process {stage} of \d+ failed:(?s:.*)\(stage {stage}, batch"
    return Expectation(description, ENDS, message, (getattr(error, "exit_code", 1),))


def _mistaken(description: str) -> Expectation:
    message = r"stage \d+, from stage {stage}[:,]"
    return Expectation(description, RESTARTS, message, (_TRANSIT,), needs_neighbour=True)


_SILENT = r"stage {stage} does not answer: it is stopped"

EXPECTATIONS: Mapping[str, Expectation] = {
    "kill": _killed("SIGKILL"),
    "kill writing of": _killed("SIGKILL with half of a checkpoint's part written"),
    "kill sealing of": _killed("SIGKILL before a checkpoint has its manifest"),
    # The launcher sees it, not a process that waits.
    "stop start of": Expectation(
        "SIGSTOP before the process is connected to the others",
        RESTARTS,
        r"process {stage} hung: it was not connected to the others",
        (_HANG,),
        at_start=True,
    ),
    "stop building of": _hung(
        "SIGSTOP after that, and before the process has a trainer",
        r"stage {stage} has been starting, without a Trainer yet,",
        at_start=True,
    ),
    "stop": _hung("SIGSTOP", _SILENT),
    "hold interpreter of": _hung("C code that keeps Python's lock", _SILENT),
    "hang": _hung("a wait without an end", r"stage {stage} has been executing"),
    "pause": Expectation("SIGSTOP, and SIGCONT a little later", CONTINUES),
    "suspend job of": _outlasted("SIGSTOP to all processes and the launcher, SIGCONT later"),
    "slow loader of": _outlasted("a batch takes longer than `--timeout-s`"),
    "slow disk of": _outlasted("a part of a checkpoint takes longer than `--timeout-s`"),
    "terminate": Expectation("SIGTERM", ENDS, exit_codes=(TERMINATED,)),
    "terminate job of": Expectation("SIGTERM to all processes", ENDS, exit_codes=(TERMINATED,)),
    "raise in": _failed("an exception in a layer"),
    "make NaN in": _failed("a gradient that is not a number", NonFiniteError),
    "exhaust memory of": _failed("a layer that wants more memory than there is"),
    # In lockstep no packet follows the lost one, and all stages wait.
    "drop packet of": Expectation(
        "a packet is not sent",
        RESTARTS,
        r"from stage {stage}\b",
        (_TRANSIT, _HANG),
        needs_timeout=True,
        needs_neighbour=True,
    ),
    "double packet of": _mistaken("a packet is sent twice"),
    "mislabel packet of": _mistaken("a packet has the number of the next batch"),
    "damage packet of": _mistaken("a packet arrives with another bit"),
    "delay packet of": Expectation(
        "a packet is sent a little later", CONTINUES, needs_neighbour=True
    ),
    "lose rendezvous of": Expectation(
        "the folder in which processes meet is deleted",
        RESTARTS,
        r"through which the processes communicate, was deleted",
        (RENDEZVOUS_LOST,),
        # A single stage has no other to meet, and may end before the loss is detected.
        needs_neighbour=True,
    ),
    "fill disk of": Expectation(
        "no room for a part of a checkpoint",
        CONTINUES,
        r"cannot write the checkpoint .*: No space left",
    ),
    "fill metrics of": Expectation(
        "no room for a row of metrics",
        CONTINUES,
        r"cannot write metrics to .*stage{stage}\.jsonl': No space left",
    ),
    "fill rendezvous of": Expectation(
        "no room in the folder in which processes meet",
        RESTARTS,
        r"nothing can be written to .*No space left",
        (RENDEZVOUS_LOST,),
        needs_neighbour=True,
    ),
    "close output of": Expectation(
        "nobody reads standard output and error any more", CONTINUES
    ),
    "scan new ports of": Expectation(
        "a stranger connects while process groups form, and sends nothing",
        CONTINUES,
        needs_neighbour=True,
        at_start=True,
    ),
    "intrude at new ports of": Expectation(
        "a stranger connects while process groups form, and sends data",
        RESTARTS,
        r"somebody else sent data to their ports",
        (PeerLostError.exit_code,),
        needs_neighbour=True,
        at_start=True,
    ),
    "intrude at ports of": Expectation(
        "a stranger tries to connect later", CONTINUES, needs_neighbour=True
    ),
}
