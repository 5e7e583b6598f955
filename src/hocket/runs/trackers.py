"""Trackers of a run, from their names."""

from collections.abc import Mapping, Sequence

from hocket.callbacks.mlflow_tracker import MLflow
from hocket.callbacks.wandb_tracker import WandB
from hocket.errors import OptionError, format_problems, import_extra
from hocket.options.ranges import wrong_choice

TRACKERS: Mapping[str, type[WandB | MLflow]] = {"wandb": WandB, "mlflow": MLflow}
"""Trackers by the names of their packages."""


def parse_trackers(text: str) -> Sequence[type[WandB | MLflow]]:
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
        import_extra(name, name, f"the tracker {name!r}", has=TRACKERS[name].needs)
    return [TRACKERS[name] for name in names]
