"""Arguments that are functions or lists."""

from collections.abc import Iterable
from typing import Any

from hocket.errors import OptionError


def wrong_functions(**given: object) -> list[str]:
    """Return one problem for each value but None that cannot be called, or is a class.

    >>> wrong_functions(loss=5, evaluation_loss=print)
    ['loss is 5; give a function']
    """
    problems = []
    for name, value in given.items():
        if isinstance(value, type):
            kind = value.__name__
            problems.append(
                f"{name} is the class {kind}; give an object of it, such as {kind}()"
            )
        elif value is not None and not callable(value):
            problems.append(f"{name} is {value!r}; give a function")
    return problems


def require_list(name: str, values: Iterable[Any]) -> list[Any]:
    """Return the values of an argument as a list.

    Raises:
        OptionError: It is no list.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise OptionError(f"{name} is {values!r}; give a list, such as [{values!r}]")
    return list(values)
