"""A name with options, and checks of options and arguments against what is wanted.

Methods, networks, data sets, optimizers and schedulers are all written in one form:
``fdg:shrink=0.5,linearize=live``.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hocket.errors import OptionError
from hocket.options.own_function import FORM

Number = TypeVar("Number", int, float)
_PYTHON_WORDS: Mapping[str, bool | None] = {"True": True, "False": False, "None": None}
_PYTHON_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_SWITCHES = frozenset(["yes", "no", "on", "off", "true", "false"])


@dataclass(frozen=True)
class Named:
    """A name and its options.

    >>> Named.parse("MultiStepLR:milestones=[150,225],gamma=0.1").options
    {'milestones': [150, 225], 'gamma': 0.1}
    >>> str(Named("fdg", {"shrink": 0.5, "linearize": "live"}))
    'fdg:shrink=0.5,linearize=live'
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(
            f"{key}={_format_value(value)}" for key, value in self.options.items()
        )
        return f"{self.name}:{options}" if options else self.name

    @property
    def label(self) -> str:
        """Title for tables.

        >>> Named.parse("fdg:shrink=0.5").label
        'fdg shrink=0.5'
        """
        return str(self).replace(":", " ", 1).replace(",", " ")

    @property
    def slug(self) -> str:
        """Name for files.

        >>> Named.parse("fdg:shrink=0.5").slug
        'fdg-shrink-0.5'
        """
        return re.sub(r"[^\w.]+", "-", str(self)).strip("-")

    @property
    def title(self) -> str:
        """The name without the module of a function of the user."""
        return self.name.rpartition(":")[2]

    def with_option(self, name: str, value: Any) -> "Named":
        """Return the same name with one more option, or another value of it.

        >>> str(Named.parse("SGD:lr=0.1,momentum=0.9").with_option("lr", 0.2))
        'SGD:lr=0.2,momentum=0.9'
        """
        return Named(self.name, self.options | {name: value})

    @staticmethod
    def parse(text: str) -> "Named":
        """Parse a name with options; values are JSON or plain words.

        Raises:
            OptionError: The text is not of the form ``name:key=value,key=value``.
        """
        own = FORM.fullmatch(text)
        name, rest = own.group("name", "rest") if own else text.partition(":")[::2]
        options: dict[str, Any] = {}
        for part in split_at_commas(rest or ""):
            key, equals, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if not (name and key and equals and value):
                raise OptionError(
                    f"cannot read {part!r} in {text!r}; write name:option=value,option=value"
                )
            if key in options:
                raise OptionError(
                    f"the option {key!r} is given twice in {text!r}; give it once"
                )
            options[key] = _parse_value(value, text)
        if not name:
            raise OptionError(f"there is no name in {text!r}; write name:option=value")
        return Named(name, options)


def split_at_commas(text: str) -> list[str]:
    """Split at commas, but not at those inside brackets, braces, parentheses or quotes.

    >>> split_at_commas("milestones=[1,2],gamma=0.1")
    ['milestones=[1,2]', 'gamma=0.1']
    >>> split_at_commas('rope={"type":"linear","factor":2},depth=1')
    ['rope={"type":"linear","factor":2}', 'depth=1']
    >>> split_at_commas('name="a],b",depth=1')
    ['name="a],b"', 'depth=1']
    """
    parts, depth, quoted, escaped = [""], 0, False, False
    for letter in text:
        if letter == '"' and not escaped:
            quoted = not quoted
        # A backslash escapes the next letter, unless it is escaped itself.
        escaped = letter == "\\" and not escaped
        if not quoted:
            depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if text else []


def parse_numbers(
    text: str, option: str, wanted: str, kind: Callable[[str], Number] = int
) -> list[Number]:
    """Return numbers that are written as ``6,4,2,0``.

    Args:
        text: The numbers.
        option: Name of the option, for the message.
        wanted: Description of what is wanted.
        kind: Type of the numbers.

    Raises:
        OptionError: They are no such numbers.
    """
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError as error:
        raise OptionError(f"{option} is {text!r}; write {wanted}") from error


def _parse_value(value: str, text: str) -> Any:
    """Return the value of an option in a text: JSON, or a plain word.

    Raises:
        OptionError: It is not finite, or a word that may mean true or false.
    """

    def finite(number: str) -> float:
        if not math.isfinite(parsed := float(number)):
            raise OptionError(
                f"the value {number} in {text!r} is not finite; give a finite number"
            )
        return parsed

    try:
        return json.loads(value, parse_constant=finite, parse_float=finite)
    except OptionError:
        raise
    except RecursionError:
        raise OptionError(f"an option of {text[:60]!r}... is nested too deeply") from None
    except ValueError:  # a word, or a number of thousands of digits
        pass
    if value in _PYTHON_WORDS:
        return _PYTHON_WORDS[value]
    if value.casefold() in _SWITCHES:  # as text, each of them would be true
        raise OptionError(
            f"the value {value} in {text!r} may be a name or a switch; write true or false, or "
            "the name in double quotes"
        )
    return finite(value) if _PYTHON_NUMBER.fullmatch(value) else value


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if _reads_back(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, separators=(",", ": "))


def _reads_back(word: str) -> bool:
    """Return True if a word without quotes is read as itself."""
    try:
        value = _parse_value(word, word)
    except OptionError:
        return False
    return word != "" and value == word and split_at_commas(f"{word},x") == [word, "x"]
