"""One row of a comparison: a method and the options that set it apart."""

import json
from dataclasses import dataclass
from typing import Any, Self

from hocket.errors import OptionError
from hocket.method import Method
from hocket.methods import build


@dataclass(frozen=True)
class Row:
    """A method by name, with options.

    Attributes:
        method: A name in the registry of methods.
        options: Its options, as far as they are not the defaults.

    >>> row = Row.parse("fdg:shrink=0.5,linearize=live")
    >>> row.label
    'fdg shrink=0.5 linearize=live'
    >>> row.slug
    'fdg-shrink-0.5-linearize-live'
    """

    method: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Self:
        """A row written as ``method`` or ``method:option=value,option=value``.

        Raises:
            OptionError: It is not written so, or there is no such method or option.
        """
        method, _, rest = text.partition(":")
        options: dict[str, Any] = {}
        for part in filter(None, rest.split(",")):
            option, equals, value = part.partition("=")
            if not equals:
                raise OptionError(
                    f"row {text!r}: {part!r} is no option; "
                    "write method:option=value,option=value"
                )
            options[option] = _value(value)
        row = cls(method, options)
        row.build()
        return row

    def build(self) -> Method:
        """The method itself."""
        return build(self.method, **self.options)

    @property
    def label(self) -> str:
        """How tables name it."""
        return " ".join([self.method, *(f"{name}={v}" for name, v in self.options.items())])

    @property
    def slug(self) -> str:
        """How files name it."""
        return self.label.replace(" ", "-").replace("=", "-")


def _value(text: str) -> object:
    """A number or a truth value where it reads as one, else a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text
