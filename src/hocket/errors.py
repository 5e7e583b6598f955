"""What can go wrong, one class for each thing a caller may want to catch.

Every message says where, what was found, what was wanted and what to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches


class HocketError(Exception):
    """Anything Hocket refuses or gives up on."""


class OptionError(HocketError, ValueError):
    """An option is unknown, out of range, or contradicts another."""


class CutError(HocketError, ValueError):
    """The network cannot be cut into the stages asked for."""


class ProgramError(HocketError, ValueError):
    """A program breaks a rule: something is received before it was sent, lost or doubled."""


class PacketError(HocketError, RuntimeError):
    """A packet is missing, doubled or not the one that was expected."""


class TransitError(PacketError):
    """A packet was lost, doubled, swapped or damaged between two processes."""

    exit_code = 76


class DataError(HocketError, ValueError):
    """A data set is missing, damaged or does not fit the network."""


class NonFiniteError(HocketError, ArithmeticError):
    """Something became NaN or infinite; the weights are those before it.

    Attributes:
        batch: The batch at which it did, where it was one.
    """

    batch: int | None = None


class LinearizeError(HocketError, RuntimeError):
    """A stage does something that the chosen `linearize` cannot honour."""


class WorldError(HocketError, RuntimeError):
    """The processes that train together are not what the training needs."""


class PeerLostError(HocketError, ConnectionError):
    """Another process is gone and did not say why."""

    exit_code = 69


class HangError(HocketError, TimeoutError):
    """Another process has let this one wait for too long."""

    exit_code = 75


class PeerFailedError(HocketError, RuntimeError):
    """Another process failed first; this one only says what that one said."""

    exit_code = 74


class CheckpointError(HocketError, RuntimeError):
    """A checkpoint cannot be written, or is not one to go on from."""


class RunFolderError(HocketError, FileExistsError):
    """The folder of a run exists already, or cannot be made."""


def listed(title: str, problems: Sequence[str]) -> str:
    """All problems of one input under one title.

    >>> print(listed("cannot cut", ["it has 2 layers", "layer 'fc' is shared"]))
    cannot cut:
      - it has 2 layers
      - layer 'fc' is shared
    """
    return "\n".join([f"{title}:", *(f"  - {problem}" for problem in problems)])


def too_small(numbers: Mapping[str, int]) -> list[str]:
    """What to say of each number that should be 1 or more, and is not.

    >>> too_small({"steps": 0, "batch": 8})
    ['steps is 0; give 1 or more']
    """
    return [f"{name} is {n}; give 1 or more" for name, n in numbers.items() if n < 1]


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """What to say of a word that is none of those known.

    >>> unknown("method", "fgd", ["bp", "fdg"])
    "unknown method 'fgd' (did you mean 'fdg'?); there are: bp, fdg"
    """
    names = list(known)
    close = get_close_matches(word, names)
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    return f"unknown {what} {word!r}{hint}; there are: {', '.join(names) or 'none'}"
