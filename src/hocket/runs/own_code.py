"""Code of the user that the options of a run name, which no file chooses alone."""

from collections.abc import Mapping
from typing import Any

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
