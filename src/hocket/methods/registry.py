"""Registry of methods by name: the ``PRESETS`` of all modules of this package."""

from collections.abc import Callable, Mapping
from typing import Any

from hocket.errors import OptionError
from hocket.methods.method import Method
from hocket.options.named import Named
from hocket.remedies.registry import (
    build_named,
    find_builder,
    merge_tables,
    normalize_remedy,
    parse_remedies,
    split_remedies,
)

METHODS: Mapping[str, Callable[..., Method]] = merge_tables("hocket.methods", "PRESETS")


def method_options(name: str) -> dict[str, Any]:
    """Return the options of a method and their defaults.

    Raises:
        OptionError: There is no such method.

    >>> method_options("fdg")["shrink"]
    1.0
    """
    return find_builder("method", name, METHODS, Method)[1]


def build_method(name: str, /, **options: Any) -> Method:
    """Build the method of that name with these options.

    Raises:
        OptionError: There is no such method, or it does not have or allow an option.
    """
    method: Method = build_named("method", Named(name, options), METHODS, Method)
    return method


def parse_method(text: str) -> Method:
    """Build the method that is written ``name:option=value,option=value``.

    Remedies follow after plus signs: ``name:option=value+remedy(option=value)+remedy``.

    Raises:
        OptionError: The method, a remedy or one of their options does not exist, or is out of
            range.

    >>> parse_method("fdg:shrink=0.5").signal
    Delayed(shrink=0.5)
    >>> parse_method("fdg:shrink=0.5+t1(anneal=500)").remedies
    (T1(anneal=500),)
    """
    method, remedies = split_remedies(text)
    named = Named.parse(method)
    built = build_method(named.name, **named.options)
    return built.with_remedies(*parse_remedies(remedies)) if remedies else built


def forwards_first(text: str) -> str | None:
    """Return a method whose stages forward before they back-propagate in each tick.

    Args:
        text: A method as `parse_method` reads it.

    Returns:
        The same method in that order; None if it has it already, or has no such option.

    >>> forwards_first("fdg:shrink=0.5+t1(anneal=3)")
    'fdg:shrink=0.5,order=forward-first+t1(anneal=3)'
    >>> forwards_first("ddg"), forwards_first("bp")
    (None, None)
    """
    method, remedies = split_remedies(text)
    named = Named.parse(method)
    options = method_options(named.name) | named.options
    if options.get("order") != "backward-first":
        return None
    return "+".join([str(named.with_option("order", "forward-first")), *remedies])


def normalize_method(text: str) -> str:
    """Return a method with its remedies as it is written, with numbers in their usual form.

    Raises:
        OptionError: It cannot be read.

    >>> normalize_method("fdg:shrink=5e-1+t1(anneal=3)")
    'fdg:shrink=0.5+t1(anneal=3)'
    """
    method, remedies = split_remedies(text)
    return "+".join([str(Named.parse(method)), *map(normalize_remedy, remedies)])


def as_method(method: Method | str) -> Method:
    """Return a method, which may be given as the text of `parse_method`.

    Raises:
        OptionError: It is neither, or the text names no method.
    """
    if isinstance(method, str):
        return parse_method(method)
    if not isinstance(method, Method):
        advice = "call it" if callable(method) else "give one such as hocket.FDG() or 'fdg'"
        raise OptionError(f"method is {method!r}, which is no method; {advice}")
    return method
