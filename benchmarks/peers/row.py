"""A row as it is written: a name with options, and the remedies of a method."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hocket.options import Named
from hocket.remedies.registry import split_remedies


@dataclass(frozen=True)
class Row:
    """Name, options and remedies of a row.

    Attributes:
        named: The name, and options of its method or of what is sent.
        remedies: Remedies as they are written.

    >>> row = Row.parse("paci:accumulate=4,codec=int8+predict")
    >>> row.name, row.options["codec"], row.remedies
    ('paci', 'int8', ('predict',))
    >>> row.label
    'paci accumulate=4 codec=int8+predict'
    """

    named: Named
    remedies: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> "Row":
        """Parse a row; its name and options are not checked.

        Raises:
            OptionError: The text is not of the form ``name:key=value,key=value+remedy``.
        """
        named, remedies = split_remedies(text)
        return Row(Named.parse(named), tuple(remedies))

    def __str__(self) -> str:
        return "+".join([str(self.named), *self.remedies])

    @property
    def name(self) -> str:
        """Name of the baseline or method."""
        return self.named.name

    @property
    def options(self) -> Mapping[str, Any]:
        """Options by name."""
        return self.named.options

    @property
    def label(self) -> str:
        """Title for tables."""
        return "+".join([self.named.label, *self.remedies])
