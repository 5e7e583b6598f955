"""Methods by name: every module of this package with a ``PRESETS`` table registers its own."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hocket.errors import OptionError, listed, unknown
from hocket.methods.method import Method
from hocket.options import argument_hints, wrong_options


def _registry() -> dict[str, Callable[..., Method]]:
    """The presets of all modules in this folder."""
    found: dict[str, Callable[..., Method]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])):
        found |= getattr(importlib.import_module(f"{__package__}.{module}"), "PRESETS", {})
    return found


METHODS: Mapping[str, Callable[..., Method]] = _registry()


def method_options(name: str) -> dict[str, Any]:
    """The options of a method and their defaults.

    Raises:
        OptionError: There is no such method.

    >>> options_of("fdg")["shrink"]
    1.0
    """
    if name not in METHODS:
        raise OptionError(unknown("method", name, METHODS))
    parameters = inspect.signature(METHODS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "name"}


def build_method(name: str, **options: Any) -> Method:
    """The method of that name with these options.

    Raises:
        OptionError: The method does not exist, or does not have or allow an option.
    """
    known = method_options(name)
    if problems := wrong_options(options, known, argument_hints(METHODS[name])):
        raise OptionError(listed(f"method {name!r} cannot be built", problems))
    return METHODS[name](**options)
