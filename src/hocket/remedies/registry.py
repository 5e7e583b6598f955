"""Registry of remedies by name: the ``REMEDIES`` of all modules of this package."""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hocket.errors import OptionError, format_problems
from hocket.options.hints import argument_hints, wrong_options
from hocket.options.named import Named
from hocket.options.own_function import load_own
from hocket.remedies.remedy import Remedy


def merge_tables(package: str, name: str) -> dict[str, Any]:
    """Return the entries of the tables of one name in all modules of a package."""
    entries: dict[str, Any] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(sys.modules[package].__path__)):
        entries |= getattr(importlib.import_module(f"{package}.{module}"), name, {})
    return entries


REMEDIES: Mapping[str, type[Remedy]] = merge_tables("hocket.remedies", "REMEDIES")


def remedy_options(name: str) -> dict[str, Any]:
    """Return the options of a remedy and their defaults.

    Raises:
        OptionError: There is no such remedy.

    >>> remedy_options("t1")
    {'anneal': 1000}
    """
    parameters = inspect.signature(_find_remedy(name)).parameters.values()
    return {p.name: p.default for p in parameters}


def _find_remedy(name: str) -> Callable[..., Remedy]:
    return REMEDIES.get(name) or load_own("remedy", name, REMEDIES, Remedy)


def split_remedies(text: str) -> tuple[str, list[str]]:
    """Return the text of a method, and the texts of the remedies after its plus signs.

    >>> split_remedies("adl:accumulate=2+t1(anneal=500)+staleness-rate")
    ('adl:accumulate=2', ['t1(anneal=500)', 'staleness-rate'])
    """
    method, *remedies = (part.strip() for part in re.split(r"\+(?=\D)", text))
    return method, remedies


def parse_remedies(texts: list[str]) -> tuple[Remedy, ...]:
    """Build the remedies that are written ``name`` or ``name(option=value,option=value)``.

    Raises:
        OptionError: A remedy or one of its options does not exist, or is out of range.

    >>> parse_remedies(["t1(anneal=500)"])
    (T1(anneal=500),)
    """
    return tuple(map(_parse_remedy, texts))


def normalize_remedy(text: str) -> str:
    """Return a remedy as it is written, with numbers in their usual form.

    Raises:
        OptionError: It cannot be read.

    >>> normalize_remedy("t2(decay=1e-1)")
    't2(decay=0.1)'
    """
    named = _read_remedy(text)
    options = str(named)[len(named.name) + 1 :]
    return f"{named.name}({options})" if options else named.name


def _read_remedy(text: str) -> Named:
    """Return the name and the options of a remedy.

    Raises:
        OptionError: The text is none.
    """
    match = re.fullmatch(r"([^()=,]+)(?:\(([^()]*)\))?", text)
    if match is None:
        raise OptionError(
            f"cannot read the remedy {text!r}; write each one after a plus sign, as +name or "
            "+name(option=value,option=value)"
        )
    return Named.parse(f"{match[1]}:{match[2] or ''}")


def _parse_remedy(text: str) -> Remedy:
    named = _read_remedy(text)
    defaults, build = remedy_options(named.name), _find_remedy(named.name)
    if problems := wrong_options(named.options, defaults, argument_hints(build)):
        raise OptionError(format_problems(f"remedy {named.name!r} cannot be built", problems))
    return build(**named.options)
