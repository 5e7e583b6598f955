"""Exceptions, one class for each failure that a caller may want to catch, and warnings.

Every message names the place, the value that was found, the value that was expected and the
remedy.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

MOST_NAMES = 8
"""Number of names in a message."""


class HocketError(Exception):
    """Base class of all exceptions of Hocket."""


class OptionError(HocketError, ValueError):
    """An option is unknown, out of range, or contradicts another.

    Attributes:
        problems: All problems, where one error tells of several.
    """

    problems: Sequence[str] = ()


class CutError(HocketError, ValueError):
    """The network cannot be cut into the requested stages."""


class SampleError(CutError):
    """The network does not take the inputs that it is to be cut by.

    Attributes:
        reason: Text of its forward's error.
    """

    reason: str = ""


class ProgramError(HocketError, ValueError):
    """A program is invalid: a packet is received before it is sent, never, or twice."""


class PacketError(HocketError, RuntimeError):
    """A packet is missing, duplicated or not the expected one."""


class TransitError(PacketError):
    """A packet was lost, duplicated, reordered or damaged between two processes."""

    exit_code = 76


class DataError(HocketError, ValueError):
    """A data set is missing, damaged or does not fit the network."""


class NonFiniteError(HocketError, ArithmeticError):
    """A value became NaN or infinite; the weights are those before that batch.

    Attributes:
        batch: Number of the batch at which it happened; None if no batch caused it.
    """

    batch: int | None = None


class LinearizeError(HocketError, RuntimeError):
    """A layer of a stage is not compatible with the chosen `linearize`."""


class WorldError(HocketError, RuntimeError):
    """The processes of a training do not fit its options or each other."""


class PeerLostError(HocketError, ConnectionError):
    """Another process ended without reporting a reason."""

    exit_code = 69


class HangError(HocketError, TimeoutError):
    """Another process did not respond within the time-out."""

    exit_code = 75


class PeerFailedError(HocketError, RuntimeError):
    """Another process failed first; the message repeats its error."""

    exit_code = 74


class CheckpointError(HocketError, RuntimeError):
    """A checkpoint cannot be written, or training cannot resume from it."""


class RunFolderError(HocketError, FileExistsError):
    """The folder of a run cannot be created, written or read, or belongs to another run."""


def format_problems(title: str, problems: Sequence[str]) -> str:
    """Format all problems of one input as a list under a title.

    >>> print(format_problems("cannot cut", ["it has 2 layers", "layer 'fc' is shared"]))
    cannot cut:
      - it has 2 layers
      - layer 'fc' is shared
    """
    listed = (problem.replace("\n", "\n    ") for problem in problems)
    return "\n".join([f"{title}:", *(f"  - {problem}" for problem in listed)])


def raise_problems(kind: type[HocketError], title: str, problems: Sequence[str]) -> None:
    """Raise one error of all problems, if there are any.

    Args:
        kind: Class of the error.
        title: Line above the problems.
        problems: One text for each problem.

    Raises:
        HocketError: There are some.
    """
    if problems:
        raise kind(format_problems(title, problems))


class Problems(list[str]):
    """Problems of one input, which are raised together.

    >>> def require_positive(number):
    ...     if number < 1:
    ...         raise OptionError(f"it is {number}")
    ...     return number
    >>> problems = Problems()
    >>> problems.attempt(require_positive, 1), problems.attempt(require_positive, -1)
    (1, None)
    >>> problems
    ['it is -1']
    """

    def attempt(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function, or add the problems of its error and return None.

        Use the result once `raise_together` has returned: then it is the function's.
        """
        try:
            return function(*args, **kwargs)
        except OptionError as error:
            self.extend(text for text in error.problems or [str(error)] if text not in self)
            return cast(T, None)

    def raise_together(self, title: str) -> None:
        """Raise one error of all problems, if there are any.

        Args:
            title: Line above them; a single problem needs none.

        Raises:
            OptionError: There are some.
        """
        if self:
            error = OptionError(self[0] if len(self) == 1 else format_problems(title, self))
            error.problems = tuple(self)
            raise error


def list_names(names: Sequence[str]) -> str:
    """Return names for a message, as far as there is room.

    >>> list_names("abcdefghij")
    'a, b, c, d, e, f, g, h, and 2 more'
    """
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not one of the known names.

    Args:
        kind: Noun for the named thing, such as "method".
        name: The unknown name.
        known: All valid names; the most similar ones are suggested.

    >>> unknown_name("method", "fgd", ["bp", "fdg"])
    "unknown method 'fgd' (did you mean 'fdg'?); there are: bp, fdg"
    >>> unknown_name("optimizer", "adamW", ["Adam", "AdamW"])
    "unknown optimizer 'adamW' (did you mean 'AdamW'?); there are: Adam, AdamW"
    """
    names = list(known)
    first, _, rest = name.partition(":")
    if first in names:
        return (
            f"cannot read {rest!r} in {name!r}; write {first}:option=value,option=value, or in "
            "a program give options as arguments"
        )
    folded = {each.casefold(): each for each in names}
    alike = [each for each in folded if each == name.casefold()]
    similar = [folded[each] for each in alike or get_close_matches(name.casefold(), folded)]
    hint = f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""
    return f"unknown {kind} {name!r}{hint}; there are: {', '.join(names) or 'none'}"


def import_extra(
    module: str,
    extra: str,
    needed_for: str,
    *,
    package: str = "",
    alternative: str = "",
) -> ModuleType:
    """Import a module of an optional dependency.

    Args:
        module: Full name of the module, such as "pyarrow.parquet".
        extra: The extra of Hocket that installs it.
        needed_for: Subject of the error message, such as "data set 'folder'".
        package: Name of the package; if not given, the first part of the module's.
        alternative: Advice for users who cannot install it, such as "choose 'synthetic'".

    Raises:
        OptionError: The module is not installed, or its import fails.
    """  # noqa: DOC501  # missing_extra returns an OptionError
    package = package or module.partition(".")[0]
    try:
        found = import_module(module)
        if getattr(found, "__file__", None) is None:  # a folder that has the package's name
            raise ModuleNotFoundError(name=package)
        return found
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (package, module):
            raise missing_extra(package, extra, needed_for, alternative=alternative) from error
        raise OptionError(
            f"{needed_for} needs the package {package}, which is installed and cannot be "
            f"imported ({type(error).__name__}: {error}); repair or upgrade it"
        ) from error


def missing_extra(
    package: str, extra: str, needed_for: str, *, alternative: str = ""
) -> OptionError:
    """Return the error for an optional dependency that is not installed.

    Args:
        package: Name of the missing package.
        extra: The extra of Hocket that installs it.
        needed_for: Subject of the error message, such as "data set 'folder'".
        alternative: Advice for users who cannot install it, such as "choose 'synthetic'".

    >>> print(missing_extra("PIL", "hf", "data set 'folder'"))
    data set 'folder' needs the package PIL, which is not installed; pip install 'hocket[hf]'
    """
    advice = f", or {alternative}" if alternative else ""
    return OptionError(
        f"{needed_for} needs the package {package}, which is not installed; "
        f"pip install 'hocket[{extra}]'{advice}"
    )


_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


def escape_controls(text: str) -> str:
    r"""Return a text, perhaps of a file of unknown origin, that commands no terminal.

    >>> escape_controls("a red \x1b[31mfolder")
    'a red \\x1b[31mfolder'
    """
    return text.translate(_ESCAPES)


def warn(message: str) -> None:
    """Warn, and name the innermost line of the caller's own code as the place."""
    level, frame = 2, sys._getframe(1)
    while (outer := frame.f_back) is not None:
        # Pass by Hocket, and what lies between it and its callers.
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("hocket", "torch", "contextlib"):
            break
        level, frame = level + 1, outer
    warnings.warn(message, stacklevel=level)
