"""Checks of values against type hints."""

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hocket.errors import unknown_name


def wrong_options(
    given: Mapping[str, Any],
    known: Collection[str],
    hints: Mapping[str, Any],
    kind: str = "option",
) -> list[str]:
    """Return one problem for each unknown name and for each value of a wrong type.

    Args:
        given: Values by name.
        known: All valid names.
        hints: Type hints by name; a value without a hint is not checked.
        kind: Noun for the names, such as "option" or "key".

    >>> wrong_options({"epochs": "many", "steps": 3}, ["epochs"], {"epochs": int})
    ["unknown option 'steps'; there are: epochs", "epochs is 'many'; wanted a whole number"]
    """
    return [unknown_name(kind, name, known) for name in given if name not in known] + [
        f"{name} is {_describe_value(value)}; wanted {_describe_hint(hints[name])}"
        for name, value in given.items()
        if name in hints and not matches_hint(value, hints[name])
    ]


def wrong_arguments(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    known: Collection[str] | None = None,
) -> list[str]:
    """Return one problem for each argument that a function does not take like this.

    Args:
        function: The function; one with ``**options`` takes any name.
        given: Arguments by name.
        known: Parameters that may be given; if not given, all of them.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = given
    elif known is None:
        known = argument_defaults(function)
    return wrong_options(given, known, argument_hints(function))


def argument_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function that have names, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in parameters if p.kind not in unnamed}


def wrong_fields(value: Any) -> list[str]:
    """Return one problem for each field of a dataclass whose value is not of its type."""
    hints = argument_hints(type(value))
    given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return wrong_options(given, given, hints)


def argument_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a function, a `functools.partial` or the fields of a class.

    There are none if one names what is imported for type checkers only.
    """
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    if not (inspect.isclass(function) or inspect.isroutine(function)):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function)
    except NameError:
        return {}


_COLLECTIONS: Mapping[Any, Any] = {
    list: list | tuple, tuple: list | tuple, Sequence: list | tuple, frozenset: frozenset,
}  # fmt: skip
"""Types of the values that a hint of a collection allows; JSON has no tuples."""


def matches_hint(value: Any, hint: Any) -> bool:
    """Return True if a value is of the type that a hint describes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(matches_hint(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in arguments)
    if origin in _COLLECTIONS:
        inner = arguments[0] if arguments else Any
        return isinstance(value, _COLLECTIONS[origin]) and all(
            matches_hint(item, inner) for item in value
        )
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max
    if hint is Path:
        return isinstance(value, str | Path)
    if hint in (str, int, bool, type(None)):
        return type(value) is hint
    return origin is not dict or isinstance(value, dict)


def _describe_value(value: Any) -> str:
    """Return the text of a value, with its class if that looks like one of Python's."""
    text, kind = repr(value), type(value)
    told = kind.__module__ == "builtins" or kind.__name__ in text
    return text if told else f"{text} ({kind.__module__}.{kind.__name__})"


def _describe_hint(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe_hint(option) for option in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in _COLLECTIONS:
        return f"a list, each {_describe_hint(arguments[0]) if arguments else 'anything'}"
    words = {
        str: "text",
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        Path: "a path",
        dict: "a dict",
        type(None): "null",
    }
    return words.get(origin or hint, str(hint))
