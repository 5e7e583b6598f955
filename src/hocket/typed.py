"""Values that come as words, from a file or a command line, checked against type hints."""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal


def mistyped(values: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """What to say of each value that its hint does not allow.

    >>> mistyped({"epochs": "many"}, {"epochs": int})
    ["epochs is 'many'; wanted a whole number"]
    """
    return [
        f"{name} is {value!r}; wanted {_named(hints[name])}"
        for name, value in values.items()
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
