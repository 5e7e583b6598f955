"""Code of the user that the options of a run name, which no file chooses alone."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import OptionError, raise_problems
from hocket.options.own_function import OwnFunction
from hocket.remedies.registry import split_remedies

OPTIONS = ("method", "network", "data")
"""Options that may name a function of the user."""


def own_functions(text: Any) -> list[OwnFunction]:
    """Return the functions of the user that the value of an option names.

    >>> [str(function) for function in own_functions("fdg:shrink=0.5+mine.py:blend(share=0.1)")]
    ['mine.py:blend']
    >>> own_functions("mlp:hidden=[64]"), len(own_functions("mine (1).py:build"))
    ([], 1)
    """
    method, remedies = split_remedies(text) if isinstance(text, str) else ("", [])
    # Only remedies have options in parentheses, which names of files may have as well.
    parts = [method, *remedies, *(remedy.partition("(")[0] for remedy in remedies)]
    found = dict.fromkeys(map(OwnFunction.parse, parts))
    return [function for function in found if function is not None]


def named_code(choices: Mapping[str, Any]) -> dict[str, list[OwnFunction]]:
    """Return the functions of the user that choices of a run name, by option."""
    named = {option: own_functions(choices.get(option)) for option in OPTIONS}
    return {option: functions for option, functions in named.items() if functions}


def refuse_code(choices: Sequence[tuple[str, str]], file: str) -> None:
    """Refuse code that a file names, and the user does not.

    Args:
        choices: Options whose code the user has not named, with their values in the file.
        file: The file, for the message.

    Raises:
        OptionError: There are any: with every option whose code would be run.
    """
    problems = [
        f"it runs {', '.join(map(str, own_functions(text)))} for {option} = {text!r}; if you "
        f"want that, give --{option} {shlex.quote(text)} as well"
        for option, text in choices
    ]
    raise_problems(OptionError, f"{file!r} does not choose that alone", problems)
