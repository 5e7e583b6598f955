"""Trackers of a run, from their names."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hocket.callbacks.mlflow_tracker import MLflow, require_mlflow
from hocket.callbacks.tracker import Tracker
from hocket.callbacks.wandb_tracker import WandB, require_wandb
from hocket.errors import OptionError, format_problems
from hocket.options.ranges import wrong_choice


class BuildTracker(Protocol):
    """Builds a tracker for the metrics of one process."""

    def __call__(self, name: str, process: str | None, choices: Mapping[str, Any]) -> Tracker:
        """Return the tracker, whose run has begun.

        Args:
            name: Name of the training.
            process: Name of this process among several; None for the main one.
            choices: Choices of the training, as plain values.
        """


TRACKERS: Mapping[str, BuildTracker] = {"wandb": WandB, "mlflow": MLflow}
"""Trackers by name."""
_REQUIRE = {"wandb": require_wandb, "mlflow": require_mlflow}


def parse_trackers(text: str) -> Sequence[BuildTracker]:
    """Return the trackers that a list of names means, whose packages are there.

    Args:
        text: Names, such as ``wandb,mlflow``; ``none`` for none.

    Raises:
        OptionError: A name is unknown or comes twice, or a package is not installed.

    >>> parse_trackers("none")
    []
    """
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    problems = [each for name in names for each in wrong_choice("log_to", name, [*TRACKERS])]
    if len(set(names)) < len(names):
        problems.append(f"log_to is {text!r}; name each once")
    if "tensorboard" in names:
        problems.append("files for TensorBoard have their own option: --tensorboard")
    if problems:
        raise OptionError(format_problems("cannot send metrics to these trackers", problems))
    for name in names:
        _REQUIRE[name]()
    return [TRACKERS[name] for name in names]
