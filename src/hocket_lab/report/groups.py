"""Groups of runs that differ in their seed only, and the settings in which groups differ."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from hocket.runs.config import RunConfig
from hocket_lab.report.reported_run import ReportedRun
from hocket_lab.studies.rows import WITHOUT_EFFECT_ON_RESULTS, label_rows

Line: TypeAlias = Mapping[float, tuple[float, float]]
"""Points (x, y) of a line by the place that tells which points of other runs are alike: the
updates of an evaluation, or the number of a stage or of an interval of batches."""
NOT_COMPARED = WITHOUT_EFFECT_ON_RESULTS | {
    "seed", "record_timeline", "log_every", "gradient_error_every",
}  # fmt: skip
"""Options in which the runs of a group may differ."""

UNKNOWN = "\N{EN DASH}"
"""Text for a value that is not known, or not given."""


@dataclass(frozen=True)
class Setting:
    """Setting of all groups: a row of the table that shows them side by side.

    Attributes:
        name: Name of the option, or of a fact of the environment.
        values: Its value in each group, as text.
        chosen: False for a fact of the environment.
    """

    name: str
    values: Sequence[str]
    chosen: bool = True

    @property
    def differs(self) -> bool:
        """True if groups have different values."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        number: Number of the group, which chooses its colour.
        label: Settings in which it differs from the other groups.
        digest: Digest of the settings that its runs share; new runs do not change it.
        runs: The runs.
    """

    number: int
    label: str
    digest: str
    runs: Sequence[ReportedRun]

    @property
    def config(self) -> RunConfig:
        """Choices that all runs have."""
        return self.runs[0].config


def group_runs(runs: Sequence[ReportedRun]) -> list[Group]:
    """Divide runs into groups, in the order of their first runs."""
    members: dict[str, list[ReportedRun]] = {}
    for run in runs:
        shared = repr(sorted(_compared(run).items()))
        members.setdefault(hashlib.sha256(shared.encode()).hexdigest(), []).append(run)
    settings = [_compared(group[0]) for group in members.values()]
    labels = label_rows(settings, [*settings[0]], always="method")
    return [
        Group(number, label, *member)
        for number, (label, member) in enumerate(zip(labels, members.items(), strict=True))
    ]


def compare_settings(groups: Sequence[Group]) -> list[Setting]:
    """Return the settings of groups side by side: first those that differ, then the others.

    Options that all groups leave at their defaults are left out.
    """
    defaults = _as_text(RunConfig().as_dict())
    compared = [_compared(group.runs[0]) for group in groups]
    chosen = [Setting(name, [values[name] for values in compared]) for name in compared[0]]
    chosen = [s for s in chosen if s.differs or s.values[0] != defaults.get(s.name)]
    facts = [_facts(group.runs) for group in groups]
    names = dict.fromkeys(name for each in facts for name in each)
    found = [Setting(n, [each.get(n, UNKNOWN) for each in facts], chosen=False) for n in names]
    return sorted([*chosen, *found], key=lambda setting: not setting.differs)


def average(lines: Sequence[Line]) -> list[tuple[float, float, float, float]]:
    """Return the mean of lines with their spread: x, and mean, least and greatest y.

    Only places at which all lines have a point are averaged.

    >>> average([{0: (0, 1.0), 1: (1, 2.0), 2: (2, 4.0)}, {0: (0, 3.0), 2: (2, 4.0)}])
    [(0.0, 2.0, 1.0, 3.0), (2.0, 4.0, 4.0, 4.0)]
    """
    return [
        (fmean(x), fmean(y), min(y), max(y))
        for x, y in (zip(*points, strict=True) for points in common_points(lines))
    ]


def common_points(lines: Sequence[Line]) -> list[list[tuple[float, float]]]:
    """Return the points of all lines at each place at which all have one, in their order."""
    first, *others = lines
    return [
        [line[place] for line in lines]
        for place in first
        if all(place in line for line in others)
    ]


def _compared(run: ReportedRun) -> dict[str, str]:
    """Return the settings in which runs of a group are equal, as text."""
    values = {k: v for k, v in run.config.as_dict().items() if k not in NOT_COMPARED}
    processes = {"processes": run.processes or UNKNOWN}
    return _as_text({"method": None, "stages": None} | processes | values)


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: UNKNOWN if value is None else str(value) for name, value in values.items()}


def _facts(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Return the facts of the environments of runs; where they differ, all values."""
    flat: dict[str, list[str]] = {}
    for run in runs:
        for name, value in _flatten(run.environment):
            flat.setdefault(name, []).append(value[:12] if name == "commit" else value)
    return {name: ", ".join(dict.fromkeys(values)) for name, values in flat.items()}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the entries of nested mappings, without empty ones."""
    entries: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            entries += _flatten(value, f"{name} ")
        elif value not in (None, ""):
            entries.append((f"{prefix}{name}", str(value)))
    return entries
