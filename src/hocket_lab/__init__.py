"""The laboratory: studies of many trainings, their reports, and forecasts of a training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket_lab.report.page import Report as Report
    from hocket_lab.studies.study import Study as Study
    from hocket_lab.studies.sweep import sweep as sweep

_MODULES = {
    "Report": "hocket_lab.report.page",
    "Study": "hocket_lab.studies.study",
    "sweep": "hocket_lab.studies.sweep",
}

__all__ = ["Report", "Study", "sweep"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    Raises:
        AttributeError: The laboratory has no such name.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'hocket_lab' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
