"""Registry of remedies by name: the ``REMEDIES`` of all modules of this package."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import argument_defaults, wrong_arguments
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
    return find_builder("remedy", name, REMEDIES, Remedy)[1]


def find_builder(
    kind: str, name: str, table: Mapping[str, Callable[..., Any]], result: type
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return what builds a method or a remedy, and its options with their defaults.

    Args:
        kind: Noun for what it builds.
        name: Its name in the table, or a function of the user.
        table: Builders by name.
        result: Class of what it builds.

    Raises:
        OptionError: There is no such builder.
    """
    build = table.get(name) or load_own(kind, name, table, result)
    defaults = argument_defaults(build)
    defaults.pop("name", None)
    return build, defaults


def build_named(
    kind: str, named: Named, table: Mapping[str, Callable[..., Any]], result: type
) -> Any:
    """Build a method or a remedy.

    Args:
        kind: Noun for what is built.
        named: Its name and its options.
        table: Builders by name.
        result: Class of what is built.

    Raises:
        OptionError: There is no such builder, or it does not have or allow an option.
    """
    build, defaults = find_builder(kind, named.name, table, result)
    problems = wrong_arguments(build, named.options, defaults)
    raise_problems(OptionError, f"{kind} {named.name!r} cannot be built", problems)
    return build(**named.options)


def split_remedies(text: str) -> tuple[str, list[str]]:
    """Return the text of a method, and the texts of the remedies after its plus signs.

    >>> split_remedies("adl:accumulate=2+t1(anneal=500)+staleness-rate")
    ('adl:accumulate=2', ['t1(anneal=500)', 'staleness-rate'])
    """
    # Two plus signs in a row are in the name of a folder.
    method, *remedies = (part.strip() for part in re.split(r"(?<!\+)\+(?=[^\d+])", text))
    return method, remedies


def parse_remedies(texts: list[str]) -> tuple[Remedy, ...]:
    """Build the remedies that are written ``name`` or ``name(option=value,option=value)``.

    Raises:
        OptionError: A remedy or one of its options does not exist, or is out of range.

    >>> parse_remedies(["t1(anneal=500)"])
    (T1(anneal=500),)
    """
    named = map(_read_remedy, texts)
    return tuple(build_named("remedy", each, REMEDIES, Remedy) for each in named)


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
