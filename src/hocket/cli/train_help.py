"""The help of ``hocket train``, whose options stand in groups."""

from typing import Any

from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel

FIRST_OF_GROUP = {
    "method": "Method and stages",
    "network": "Network and data",
    "epochs": "Length",
    "optimizer": "Optimization",
    "seed": "Computation",
    "extra-delay": "Delays, packets and speeds",
    "replicas": "Replicas and waits",
    "log-every": "Records",
    "checkpoint-every": "Checkpoints and NaN",
    "record-timeline": "Files",
    "config": "Runs and processes",
}
"""Title of each group, by the option that it begins with; the next options belong to it."""


def split_into_groups(entries: list[HelpEntry]) -> list[tuple[str, list[HelpEntry]]]:
    """Return the options of each group with its title, in the order of the command.

    Args:
        entries: All options of the command, in its order.

    Raises:
        KeyError: The first option begins no group.
    """
    groups: list[tuple[str, list[HelpEntry]]] = []
    for entry in entries:
        name = entry.positive_names[0].removeprefix("--")
        if name in FIRST_OF_GROUP or not groups:
            groups.append((FIRST_OF_GROUP[name], []))
        groups[-1][1].append(entry)
    return groups


class GroupedFormatter(DefaultFormatter):
    """Formatter that prints one panel for each group of options."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print the panels of a panel of options."""
        for title, entries in split_into_groups(panel.entries):
            super().__call__(console, options, panel.copy(title=title, entries=entries))
