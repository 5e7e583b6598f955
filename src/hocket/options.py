"""A name with options, and checks of options and arguments against what is wanted.

Methods, networks, data sets, optimizers and schedulers are all written in one form:
``fdg:shrink=0.5,linearize=live``.
"""

import dataclasses
import inspect
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hocket.errors import OptionError, unknown_name
from hocket.own_function import FORM

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
    parts, depth, quoted = [""], 0, False
    for letter in text:
        if letter == '"' and not parts[-1].endswith("\\"):
            quoted = not quoted
        if not quoted:
            depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if text else []


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
    return json.dumps(list(value) if isinstance(value, tuple) else value).replace(", ", ",")


def _reads_back(word: str) -> bool:
    """Return True if a word without quotes is read as itself."""
    try:
        value = _parse_value(word, word)
    except OptionError:
        return False
    return word != "" and value == word and split_at_commas(f"{word},x") == [word, "x"]


def wrong_options(
    given: Mapping[str, Any],
    known: Collection[str],
    hints: Mapping[str, Any],
    kind: str = "option",
) -> list[str]:
    """Return one problem for each unknown name and for each value of a wrong type.

    Args:
        given: Values by name.
        known: All valid names.
        hints: Type hints by name; a value without a hint is not checked.
        kind: Noun for the names, such as "option" or "key".

    >>> wrong_options({"epochs": "many", "steps": 3}, ["epochs"], {"epochs": int})
    ["unknown option 'steps'; there are: epochs", "epochs is 'many'; wanted a whole number"]
    """
    return [unknown_name(kind, name, known) for name in given if name not in known] + [
        f"{name} is {value!r}; wanted {_describe_hint(hints[name])}"
        for name, value in given.items()
        if name in hints and not _matches_hint(value, hints[name])
    ]


def wrong_fields(value: Any) -> list[str]:
    """Return one problem for each field of a dataclass whose value is not of its type."""
    hints = typing.get_type_hints(type(value))
    given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return wrong_options(given, given, hints)


@dataclass(frozen=True)
class Range:
    """Numbers that an option can have.

    Attributes:
        least: The smallest one.
        above: Limit that all are above.
        most: The largest one.
        below: Limit that all are below.

    >>> str(Range(least=1)), str(Range(above=0, most=1)), str(Range(least=0, below=1))
    ('a number of at least 1', 'a number in (0, 1]', 'a number in [0, 1)')
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        upper = f"{self.most}]" if math.isfinite(self.most) else f"{self.below})"
        if math.isfinite(min(self.most, self.below)):
            lower = f"[{self.least}" if math.isfinite(self.least) else f"({self.above}"
            return f"a number in {lower}, {upper}"
        if math.isfinite(self.least):
            return f"a number of at least {self.least}"
        return f"a number above {self.above}"


MAX_SEED = 2**63 - 1
"""Largest seed of a generator of PyTorch that leaves room for the numbers of replicas."""
MAX_TIMEOUT_S = 10**6
"""Some 11 days; much longer ones overflow in PyTorch's counters of nanoseconds."""
RANGES = {
    "seed": Range(least=0, most=MAX_SEED),
    "replicas": Range(least=1),
    "check_every": Range(least=1),
    "timeout_s": Range(above=0, most=MAX_TIMEOUT_S),
    "slow_timeout_s": Range(above=0, most=MAX_TIMEOUT_S),
    "warmup_epochs": Range(least=0),
    "warmup_updates": Range(least=0),
    "warmup_factor": Range(above=0, most=1),
}
"""Ranges of the options that a trainer and a run file have in common."""
NEEDED = {
    "scheduler_unit": "scheduler",
    "warmup_factor": "warmup_epochs",
    "batchnorm": "replicas",
}
"""Options that both have and that have no effect without another one."""


def out_of_range(value: Any, ranges: Mapping[str, Range]) -> list[str]:
    """Return one problem for each number that is out of its range.

    Args:
        value: A value with numbers as attributes. What is no finite number is not compared:
            `wrong_fields` reports it.
        ranges: Range of each attribute, by its name.

    >>> out_of_range(types.SimpleNamespace(seed=-1), {"seed": Range(least=0)})
    ['seed is -1; use a number of at least 0']
    """
    return [
        f"{name} is {number!r}; use {limits}"
        for name, limits in ranges.items()
        if _matches_hint(number := getattr(value, name), int | float) and number not in limits
    ]


def wrong_choice(name: str, value: object, choices: Collection[str]) -> list[str]:
    """Return one problem if the value is not one of the choices, and none if it is.

    Args:
        name: Name of the option.
        value: Its value.
        choices: All valid values, for instance ``get_args`` of a `Literal`.

    >>> wrong_choice("timing", "often", ["regular", "random"])
    ["timing is 'often'; use 'regular' or 'random'"]
    """
    if value in choices:
        return []
    return [f"{name} is {value!r}; use {' or '.join(map(repr, choices))}"]


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check that the value of an option is one of its choices.

    Args:
        name: Name of the option.
        value: Its value.
        choices: All valid values, for instance ``get_args`` of a `Literal`.

    Raises:
        OptionError: It is none of them.
    """
    for problem in wrong_choice(name, value, choices):
        raise OptionError(problem)


def argument_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of the arguments of a function or of a `functools.partial`."""
    function = inspect.unwrap(function.func if isinstance(function, partial) else function)
    return typing.get_type_hints(function)


_COLLECTIONS: Mapping[Any, Any] = {
    list: list | tuple, tuple: list | tuple, Sequence: list | tuple, frozenset: frozenset,
}  # fmt: skip
"""Types of the values that a hint of a collection allows; JSON has no tuples."""


def _matches_hint(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_matches_hint(value, option) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in arguments)
    if origin in _COLLECTIONS:
        inner = arguments[0] if arguments else Any
        return isinstance(value, _COLLECTIONS[origin]) and all(
            _matches_hint(item, inner) for item in value
        )
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max
    if hint is Path:
        return isinstance(value, str | Path)
    if hint in (str, int, bool, type(None)):
        return type(value) is hint
    return True


def _describe_hint(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe_hint(option) for option in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in _COLLECTIONS:
        return f"a list, each {_describe_hint(arguments[0]) if arguments else 'anything'}"
    words = {
        str: "text",
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        Path: "a path",
        type(None): "null",
    }
    return words.get(hint, str(hint))


def require_functions(**given: object) -> None:
    """Refuse what cannot be called; None is an argument that was left out.

    Args:
        **given: Values by the names of the arguments.

    Raises:
        OptionError: A value is no function, or a class, whose call builds an object.
    """
    for name, value in given.items():
        if isinstance(value, type):
            raise OptionError(
                f"{name} is the class {value.__name__}; give an object of it, such as "
                f"{value.__name__}()"
            )
        if value is not None and not callable(value):
            raise OptionError(f"{name} is {value!r}; give a function")


def require_list(name: str, values: Iterable[Any]) -> list[Any]:
    """Return the values of an argument as a list.

    Args:
        name: Name of the argument.
        values: Its values.

    Raises:
        OptionError: It is no list.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise OptionError(f"{name} is {values!r}; give a list, such as [{values!r}]")
    return list(values)
