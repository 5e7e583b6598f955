"""Checks that the settings of all measurements share, and the values that they pass on."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from hocket.errors import OptionError, format_problems


class Settings(Protocol):
    """Everything that was chosen for a measurement: a frozen dataclass with defaults."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of a training step, the same for all rows.

    Attributes:
        batch: Samples in a step.
        network: Name in the zoo, with options.
        shape: Shape of one input, without the batch dimension.
        threads: PyTorch threads in each process.
        channels_last: Use the channels-last memory format.
    """

    batch: int = 128
    network: str = "resnet20"
    shape: tuple[int, ...] = (3, 32, 32)
    threads: int = 1
    channels_last: bool = True


def check_settings(
    title: str,
    settings: Settings,
    *,
    at_least: Mapping[int, Sequence[str]] | None = None,
    not_empty: Sequence[str] = (),
    problems: Iterable[str] = (),
) -> None:
    """Refuse settings that are out of range, all of them at once.

    Args:
        title: First line of the error.
        settings: The settings.
        at_least: Names of settings by the smallest number that they may be.
        not_empty: Names of settings that need at least one item.
        problems: Further problems.

    Raises:
        OptionError: With a line for every problem.
    """
    lines = [
        f"{name} is {value}; give {least} or more"
        for least, names in (at_least or {}).items()
        for name in names
        if (value := getattr(settings, name)) < least
    ]
    lines += [
        f"{name} is empty; give at least one"
        for name in not_empty
        if not getattr(settings, name)
    ]
    lines += problems
    if lines:
        raise OptionError(format_problems(title, lines))


def select_fields(settings: Settings, target: type[Any]) -> dict[str, Any]:
    """Return the settings that are fields of another dataclass too, to build one from them."""
    names = {field.name for field in dataclasses.fields(target)}
    return {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if field.name in names
    }
