"""Values that come as words, from a file or a command line, checked against type hints."""

import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hocket.errors import unknown


def wrong_options(
    given: Mapping[str, Any],
    known: Collection[str],
    hints: Mapping[str, Any],
    what: str = "option",
) -> list[str]:
    """What to say of each name that is not known, and of each value that its hint forbids.

    >>> wrong_options({"epochs": "many", "steps": 3}, ["epochs"], {"epochs": int})
    ["unknown option 'steps'; there are: epochs", "epochs is 'many'; wanted a whole number"]
    """
    return [unknown(what, name, known) for name in given if name not in known] + [
        f"{name} is {value!r}; wanted {_named(hints[name])}"
        for name, value in given.items()
        if name in hints and not _fits(value, hints[name])
    ]


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function's arguments, also of one with some arguments filled in."""
    return typing.get_type_hints(function.func if isinstance(function, partial) else function)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in arguments)
    if origin in (list, tuple, Sequence):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list | tuple) and all(_fits(item, inner) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str | Path)
    if hint in (str, int, bool, type(None)):
        return type(value) is hint
    return True


def _named(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_named(option) for option in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (list, tuple, Sequence):
        return f"a list, each {_named(arguments[0]) if arguments else 'anything'}"
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        type(None): "null",
    }
    return words.get(hint, str(hint))
