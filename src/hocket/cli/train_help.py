"""The help of ``hocket train``, in groups of options."""

from typing import Any

from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel

from hocket.options.common_options import COMMON_GROUPS
from hocket.options.texts import in_groups

FIRST_OF_GROUP = COMMON_GROUPS | {
    "recipe": "Start and processes",
    "method": "Method and stages",
    "network": "Network and data",
    "epochs": "Length",
    "optimizer": "Optimization",
    "device": "Computation",
    "extra_delay": "Delays, packets and speeds",
    "log_every": "Records",
    "checkpoint_every": "Checkpoints and NaN",
    "tensorboard": "Files",
}
"""Title of each group, by the options that it begins with."""


def split_into_groups(entries: list[HelpEntry]) -> list[tuple[str, list[HelpEntry]]]:
    """Return the options of each group with its title; inherited options last.

    Args:
        entries: All options of the command, in its order.

    Raises:
        KeyError: The first option begins no group.
    """
    by_name = {e.positive_names[0].removeprefix("--").replace("-", "_"): e for e in entries}
    groups = in_groups(by_name, FIRST_OF_GROUP)
    return [(title, [by_name[name] for name in names]) for title, names in groups.items()]


class GroupedFormatter(DefaultFormatter):
    """Formatter that prints one panel for each group of options."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print the panels of a panel of options."""
        for title, entries in split_into_groups(panel.entries):
            super().__call__(console, options, panel.copy(title=title, entries=entries))
