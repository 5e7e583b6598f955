"""A thing chosen by name, with its options, in one word: ``fdg:shrink=0.5,linearize=live``.

Methods, networks, data sets, optimizers and schedulers are all given in this form.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from hocket.errors import OptionError


@dataclass(frozen=True)
class Named:
    """A name and the options that were given with it.

    >>> Named.parse("MultiStepLR:milestones=[150,225],gamma=0.1").options
    {'milestones': [150, 225], 'gamma': 0.1}
    >>> str(Named("fdg", {"shrink": 0.5, "linearize": "live"}))
    'fdg:shrink=0.5,linearize=live'
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={_written(value)}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name

    @property
    def label(self) -> str:
        """How tables name it.

        >>> Named.parse("fdg:shrink=0.5").label
        'fdg shrink=0.5'
        """
        return str(self).replace(":", " ", 1).replace(",", " ")

    @property
    def slug(self) -> str:
        """How files name it.

        >>> Named.parse("fdg:shrink=0.5").slug
        'fdg-shrink-0.5'
        """
        return re.sub(r"[^\w.]+", "-", str(self)).strip("-")

    @staticmethod
    def parse(text: str) -> "Named":
        """Read a name with options; values are JSON, or words.

        Raises:
            OptionError: The text is not of the form ``name:key=value,key=value``.
        """
        name, _, rest = text.partition(":")
        options: dict[str, Any] = {}
        for part in _split(rest):
            key, equals, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if not (name and key and equals and value):
                raise OptionError(
                    f"cannot read {part!r} in {text!r}; write name:option=value,option=value"
                )
            if key in options:
                raise OptionError(f"the option {key!r} stands twice in {text!r}; give it once")
            options[key] = _read(value, text)
        if not name:
            raise OptionError(f"there is no name in {text!r}; write name:option=value")
        return Named(name, options)


def _split(text: str) -> list[str]:
    """The parts between commas, where a comma in brackets is none."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if text else []


def _read(value: str, text: str) -> Any:
    def refuse(constant: str) -> None:
        raise OptionError(f"there is the value {constant} in {text!r}; give a finite number")

    try:
        return json.loads(value, parse_constant=refuse)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(value, value)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value).replace(", ", ",")
