"""Texts of options for ``help``: the strings below the fields of a dataclass, by group."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import pairwise
from textwrap import fill

from hocket.options.common_options import CommonOptions


def field_texts(options: type) -> dict[str, str]:
    """Return the text of each field of a dataclass: the string below it, there or in a base.

    >>> field_texts(CommonOptions)["checksum"]
    'Send tensors to other processes with a checksum.'
    """
    texts: dict[str, str] = {}
    for kind in reversed(options.__mro__[:-1]):
        (body,) = ast.parse(inspect.getsource(kind)).body
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for above, below in pairwise(statements):
            if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                texts[ast.unparse(above.target)] = " ".join(text.split())
    return texts


def in_groups(names: Iterable[str], first: Mapping[str, str]) -> dict[str, list[str]]:
    """Return names by the title of their group; names of :class:`CommonOptions` come last.

    Args:
        names: The names, in their order.
        first: Title of each group, by the names that it begins with; the next names belong to
            it.

    Raises:
        KeyError: The first name begins no group.

    >>> in_groups(["clip", "epochs", "lr"], {"epochs": "Length", "lr": "Rate", "clip": "Rate"})
    {'Length': ['epochs'], 'Rate': ['lr', 'clip']}
    """
    common = {field.name for field in fields(CommonOptions)}
    groups: dict[str, list[str]] = {}
    title = None
    for name in sorted(names, key=common.__contains__):
        title = first[name] if title is None else first.get(name, title)
        groups.setdefault(title, []).append(name)
    return groups


def describe_options(options: type, first: Mapping[str, str]) -> str:
    """Return the sections of a docstring that describe the fields of a dataclass.

    Args:
        options: The dataclass.
        first: Title of each section, by the fields that it begins with.
    """
    texts, sections = field_texts(options), []
    groups = in_groups((field.name for field in fields(options)), first)
    for title, names in groups.items():
        lines = [
            fill(f"{' ' * 8}{name}: {texts[name]}", 92, subsequent_indent=" " * 12)
            for name in names
        ]
        sections.append("\n".join([f"    Keyword Args: {title}", *lines, ""]))
    return "\n".join(sections)
