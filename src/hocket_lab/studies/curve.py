"""Curve of a run: its metrics against batches, updates, samples and seconds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from hocket.errors import OptionError
from hocket.methods import Method, parse_method
from hocket.options.named import Named
from hocket.remedies.registry import split_remedies
from hocket.runs.build import build_run_method
from hocket.runs.config import RunConfig
from hocket.runs.own_code import own_functions
from hocket.runs.read_folder import METRICS_FILE, metric_rows
from hocket_lab.studies.target import Target


@dataclass(frozen=True)
class Point:
    """State of a run at an evaluation.

    Attributes:
        batches: Number of batches that it was trained on.
        updates: Number of updates of the weights of a stage.
        samples: Number of samples that it was trained on.
        seconds: Time of training, without evaluations.
        train_loss: Mean loss on the training data of the epoch; None within one.
        test_loss: Loss on the test data; None without such data, infinity if it is NaN or
            infinite.
        test_error: Share of wrong predictions on the test data; None if targets are no classes.
        skipped: Number of these batches that a stage skipped, up to the last whole epoch: the
            most of any stage in each epoch, added up.
    """

    batches: int
    updates: int
    samples: int
    seconds: float
    train_loss: float | None
    test_loss: float | None
    test_error: float | None
    skipped: int = 0

    def value(self, metric: str) -> float | None:
        """Return the value of a metric, by its name; None if it was not measured."""
        value: float | None = getattr(self, metric)
        return value


@dataclass(frozen=True)
class StageError:
    """Error of the late gradients of a stage, the mean over the compared batches of a run.

    Attributes:
        stage: Number of the stage.
        cosine: Cosine of the angle to the true gradient.
        ratio: Norm of the late gradient over the norm of the true one.
    """

    stage: int
    cosine: float
    ratio: float


def read_curve(folder: Path, config: RunConfig, *, under_way: bool = False) -> list[Point]:
    """Read the curve of a run from the metrics in its folder, as far as whole epochs go.

    It ends before an epoch that is missing, as its samples and seconds are not known.
    Evaluations within an epoch get a part of its samples and seconds, in proportion to the
    updates.

    Args:
        folder: The run folder.
        config: The configuration of the run.
        under_way: Go on with the evaluations of an epoch that has not ended.
    """
    accumulate = _accumulate(config.method)
    curve = [Point(0, 0, 0, 0.0, None, None, None)]
    within: list[dict[str, Any]] = []
    epochs = 0
    for row in metric_rows(folder / METRICS_FILE, "epoch", "evaluation"):
        if row["kind"] == "evaluation":
            within.append(row)
            continue
        if row["number"] != epochs:
            within = []
            break
        # Add the end of the epoch, and the evaluations before it.
        epochs += 1
        before = curve[-1]
        batches = before.batches + math.ceil(row["samples"] / config.batch_size)
        updates = row.get("updates")
        test = row["evaluation"] or {}
        # JSON has no NaN, and no infinity.
        test_loss = math.inf if "loss" in test and test["loss"] is None else test.get("loss")
        end = Point(
            batches=batches,
            updates=batches // accumulate if updates is None else updates,
            samples=before.samples + row["samples"],
            seconds=before.seconds + row["seconds"],
            train_loss=row["loss"],
            test_loss=test_loss,
            test_error=test.get("error"),
            skipped=before.skipped + max(row.get("skipped", ()), default=0),
        )
        curve += [_point_within(before, end, each) for each in within]
        curve.append(end)
        within = []
    rest = [_point_under_way(curve[-1], each, config) for each in within if under_way]
    return curve[1:] + rest


def _accumulate(method: str) -> int:
    """Return the number of batches of an update; no code runs that a run folder names.

    A method of the user has then 1, or its option ``accumulate``.
    """
    if own_functions(method):
        options = Named.parse(split_remedies(method)[0]).options
        return int(options.get("accumulate", 1))
    return parse_method(method).accumulate


def build_read_method(config: RunConfig) -> Method:
    """Return the method of a configuration that a file holds; no code runs that it names.

    Raises:
        OptionError: It is a function of the user, or as in `build_run_method`.
    """
    if own := own_functions(config.method):
        raise OptionError(f"{own[0]} is code of the user, and reading a run runs none")
    return build_run_method(config)


def epoch_length(folder: Path, config: RunConfig) -> int | None:
    """Return the number of batches in a run's first epoch; None if that has not ended."""
    first = next(metric_rows(folder / METRICS_FILE, "epoch"), None)
    return None if first is None else math.ceil(int(first["samples"]) / config.batch_size)


def _point_within(before: Point, end: Point, row: Mapping[str, Any]) -> Point:
    """Return the point of an evaluation between the beginning of an epoch and its end."""
    share = (row["updates"] - before.updates) / max(1, end.updates - before.updates)
    return replace(
        before,
        batches=before.batches + round(share * (end.batches - before.batches)),
        updates=row["updates"],
        samples=before.samples + round(share * (end.samples - before.samples)),
        seconds=before.seconds + share * (end.seconds - before.seconds),
        train_loss=None,
        test_loss=math.inf if row["loss"] is None else row["loss"],  # JSON has neither
        test_error=row["error"],
    )


def _point_under_way(before: Point, row: Mapping[str, Any], config: RunConfig) -> Point:
    """Return the point of an evaluation in an epoch that has not ended.

    Its seconds go on at the pace of the epochs before; without one they are NaN.
    """
    batches = (row["updates"] - before.updates) * _accumulate(config.method)
    pace = before.seconds / before.updates if before.updates else math.nan
    end = replace(
        before,
        batches=before.batches + batches,
        updates=row["updates"],
        samples=before.samples + batches * config.batch_size,
        seconds=pace * row["updates"],
    )
    return _point_within(before, end, row)


def first_reaching(curve: Sequence[Point], target: Target) -> Point | None:
    """Return the first point of a curve that reaches a target; None if none does."""
    values = ((point, point.value(target.metric)) for point in curve)
    return next((p for p, value in values if value is not None and value <= target.limit), None)


def read_gradient_error(folder: Path) -> list[StageError]:
    """Return the error of each stage's gradients; nothing if it was not measured."""
    return mean_errors(
        StageError(row["stage"], row["cosine"], row["ratio"])
        for row in metric_rows(folder / METRICS_FILE, "comparison")
        if row["cosine"] is not None and row["ratio"] is not None
    )


def mean_errors(errors: Iterable[StageError]) -> list[StageError]:
    """Return the mean error of each stage.

    >>> mean_errors([StageError(1, 0.5, 2.0), StageError(0, 1.0, 1.0), StageError(1, 0.0, 4.0)])
    [StageError(stage=0, cosine=1.0, ratio=1.0), StageError(stage=1, cosine=0.25, ratio=3.0)]
    """
    by_stage: dict[int, list[StageError]] = {}
    for error in errors:
        by_stage.setdefault(error.stage, []).append(error)
    return [
        StageError(stage, fmean(e.cosine for e in found), fmean(e.ratio for e in found))
        for stage, found in sorted(by_stage.items())
    ]
