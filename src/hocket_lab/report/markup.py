"""HTML and SVG from nested calls, in which every text is escaped."""

import html
from collections.abc import Iterable, Iterator
from typing import TypeAlias

VOID = frozenset(["meta", "br", "input"])
"""Elements without an end."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
"""Content of an element: text, which is escaped, markup, a list of both, or nothing."""


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Build an element; text in it is escaped.

    Args:
        tag: Name of the element.
        children: Its content.
        attributes: Its attributes: ``class_`` is class and ``data_x`` is data-x. True is an
            attribute without a value; those that are None or False are left out. Numbers have
            two decimals at most.

    >>> element("td", "a<b", element("br"), class_="number")
    '<td class="number">a&lt;b<br></td>'
    >>> element("br", x=0.5, y=3.0, width="0.123")
    '<br x="0.5" y="3" width="0.123">'
    """
    words = [tag]
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            is_real = isinstance(value, float)
            text = f"{value:.2f}".rstrip("0").rstrip(".") if is_real else str(value)
            words.append(f'{name}="{html.escape(text)}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in VOID else f"{start}{''.join(_flatten(children))}</{tag}>")


def _flatten(children: Iterable[Child]) -> Iterator[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str | int):
            yield html.escape(str(child))
        elif child is not None:
            yield from _flatten(child)
