"""Rows of metrics: what an event or a result tells, and the numbers in it."""

from collections.abc import Iterator, Mapping
from typing import Any

from hocket.engine.event import Event
from hocket.errors import import_extra

SCALARS = ("loss", "error", "gradient_norm", "staleness", "lr", "cosine", "ratio")
"""Values of rows that are drawn as curves."""
_KINDS = {"B": "backward", "U": "update", "T": "target"}
_AXES = {"batch": "batch", "number": "epoch", "updates": "updates"}
"""Axes of curves by the value of a row that they show; the first one that a row has counts."""


def event_row(event: Event, every: int, *, is_last: bool) -> tuple[str, dict[str, Any]] | None:
    """Return the kind and the values of the row of an event; None if it has none.

    A backward, an update and learning from a target have one for every n-th batch, and a fault
    for any batch.

    Args:
        event: The event.
        every: Interval of batches.
        is_last: True for an event of the last stage, whose losses are the network's.
    """
    action, report = event.action, event.report
    place = {"tick": event.tick, "stage": action.stage, "batch": action.batch}
    if report.fault is not None:
        return "skipped", {**place, "epoch": report.epoch, "fault": report.fault}
    if action.kind not in _KINDS or action.batch % every or report.skipped:
        return None
    values = {name: value for name, value in report.values().items() if value is not None}
    del values["skipped"]
    if action.kind == "B":  # the number of stages may be another one after a resume
        values["last"] = is_last
    return _KINDS[action.kind], {**place, **values}


def axis(values: Mapping[str, Any]) -> tuple[str, int]:
    """Return the name of the axis of a row's curves, and the row's place on it.

    >>> axis({"number": 3, "updates": 40})
    ('epoch', 3)
    """
    key = next(key for key in _AXES if key in values)
    return _AXES[key], values[key]


def scalars(kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row, each with the name of its curve.

    >>> list(scalars("backward", {"stage": 1, "batch": 7, "loss": 0.5}))
    [('backward/loss/stage1', 0.5)]
    """
    # Numbers of all kinds of rows.
    stage = f"/stage{values['stage']}" if "stage" in values else ""
    for name, value in values.items():
        if name in SCALARS and isinstance(value, int | float):
            yield f"{kind}/{name}{stage}", value
    # Metrics of the user's own, and results of an evaluation.
    evaluation = values["evaluation"] if kind == "epoch" else None
    own = evaluation["metrics"] if evaluation else values.get("metrics", {})
    for name, value in own.items():
        yield f"{kind}/{name}", value
    if not evaluation:
        return
    yield "epoch/test_loss", evaluation["loss"]
    if evaluation["error"] is not None:
        yield "epoch/test_error", evaluation["error"]
        for k, error in enumerate(evaluation["exits"]):
            yield f"epoch/exit_error/stage{k}", error
        if evaluation["ensemble"] is not None:
            yield "epoch/ensemble_error", evaluation["ensemble"]


def import_tensorboard() -> Any:
    """Import what writes event files for TensorBoard.

    Raises:
        OptionError: The package is not installed.
    """
    module, name = "torch.utils.tensorboard", "tensorboard"
    return import_extra(module, name, "the option tensorboard", package=name)
