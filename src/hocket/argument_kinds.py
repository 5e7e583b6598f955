"""Arguments of another kind than wanted, refused by name before anything is built."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from hocket.errors import DataError, OptionError


def require_functions(**given: object) -> None:
    """Refuse what cannot be called; None is an argument that was left out.

    Args:
        **given: Values by the names of the arguments.

    Raises:
        OptionError: A value is no function, or a class of modules, whose call builds one.
    """
    for name, value in given.items():
        if isinstance(value, type) and issubclass(value, nn.Module):
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


def require_batches(name: str, batches: object) -> None:
    """Refuse data that cannot be iterated; a data set with indices can be.

    Args:
        name: Name of the data, for the message.
        batches: The data.

    Raises:
        DataError: They cannot be iterated.
    """
    if not (hasattr(batches, "__iter__") or hasattr(type(batches), "__getitem__")):
        raise DataError(
            f"the {name} are {batches!r}; give a DataLoader, or another iterable of batches"
        )
