"""The help of ``hocket train``, in groups of options."""

from typing import Any

from cyclopts.help import DefaultFormatter, HelpPanel

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


class GroupedFormatter(DefaultFormatter):
    """Formatter that prints one panel for each group of options."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print the panels of a panel of options; inherited options last."""
        by_name = {
            entry.positive_names[0].removeprefix("--").replace("-", "_"): entry
            for entry in panel.entries
        }
        for title, members in in_groups(by_name, FIRST_OF_GROUP).items():
            entries = [by_name[name] for name in members]
            super().__call__(console, options, panel.copy(title=title, entries=entries))
