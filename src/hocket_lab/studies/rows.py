"""Rows of a study, and the runs of a row: one for each learning rate and seed."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import OptionError
from hocket.methods.registry import normalize_method
from hocket.options.named import Named
from hocket.runs.build import split_schedulers
from hocket.runs.config import RunConfig, parse_config
from hocket.runs.own_code import named_code

DEFAULTS: Mapping[str, Any] = {"threads": 1, "checkpoint_every": 500}
"""Options that the runs of a study have unless the study gives them."""
RATES = "learning_rates"
"""Key of a table of the grid that is no option: the learning rates of its rows."""
WITHOUT_EFFECT_ON_RESULTS = frozenset([
    "checkpoint_every", "checkpoint_keep", "checksum", "log_to", "on_checkpoint_error",
    "run_dir", "slow_timeout_s", "tensorboard", "timeout_s", "weights_format", "workers",
])  # fmt: skip
"""Options in which a run may differ and still be the same run."""


@dataclass(frozen=True)
class Row:
    """A row of the table: runs that differ in learning rate and seed only.

    Attributes:
        label: Options in which it differs from other rows, as text.
        options: Options of its runs, but for learning rate and seed.
        learning_rates: Learning rates to choose from; none to use the optimizer's.
    """

    label: str
    options: Mapping[str, Any]
    learning_rates: tuple[float, ...]

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Learning rates to try; None for the optimizer's."""
        return self.learning_rates or (None,)

    def run(self, rate: float | None, seed: int, *, hold_out: float = 0.0) -> "Run":
        """Return the run of a learning rate and a seed.

        Args:
            rate: The rate; None for the optimizer's.
            seed: The seed.
            hold_out: Share of the training examples to use as test examples; 0 for the option
                of the row.

        Raises:
            OptionError: Its configuration is impossible, or has no use for the rate.
        """
        options = {**DEFAULTS, **self.options, "seed": seed}
        if hold_out:
            options["hold_out"] = hold_out
        if rate is not None:
            options = with_learning_rate(options, rate)
        return Run(self.label, parse_config(options, f"row {self.label!r}"), rate, seed)


@dataclass(frozen=True)
class Run:
    """One training of a study.

    Attributes:
        label: Label of its row.
        config: Its configuration, without a run folder.
        rate: Learning rate that was given to it; None for the optimizer's.
        seed: Its seed.
        name: Name of its folder, which is the same as long as its configuration is, and the
            files of its plan and of the user's code.
        files: Digests of these files when the study was read, by what they are.
    """

    label: str
    config: RunConfig
    rate: float | None
    seed: int
    name: str = field(init=False)
    files: Mapping[str, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        method = Named(normalize_method(self.config.method)).slug[:40]
        rate = Named.parse(self.config.optimizer).options.get("lr")
        files = file_digests(vars(self.config))
        decisive = choices(self.config) | files
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
        place = f"{method}-stages-{self.config.stages}-lr-{rate}-seed-{self.config.seed}"
        object.__setattr__(self, "name", f"{place}-{digest.hexdigest()[:8]}")
        object.__setattr__(self, "files", files)

    @property
    def title(self) -> str:
        """Description for messages."""
        rate = "" if self.rate is None else f", lr {self.rate:g}"
        held_out = f", {self.config.hold_out:g} held out" if self.config.hold_out else ""
        return f"{self.label}{rate}, seed {self.seed}{held_out}"


def file_digests(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the files that the options of a run name, but for its data."""
    files = {
        f"{option} file{f' {number}' if number else ''}": function.file
        for option, functions in named_code(options).items()
        for number, function in enumerate(functions)
    }
    plan = str(options.get("plan", ""))
    if plan.endswith(".json"):
        files["plan file"] = Path(plan)
    return {
        kind: hashlib.sha256(file.read_bytes()).hexdigest()
        for kind, file in files.items()
        if file.is_file()
    }


def choices(config: RunConfig) -> dict[str, Any]:
    """Return the options that decide the results of a run, where they are not the defaults.

    An option that Hocket gets later does not change the identity of the runs before it.
    """
    defaults = RunConfig().as_dict()
    chosen = {
        name: value
        for name, value in config.as_dict().items()
        if name not in WITHOUT_EFFECT_ON_RESULTS and value != defaults[name]
    }
    if "method" in chosen:
        chosen["method"] = normalize_method(chosen["method"])
    # Equal however numbers are written.
    if "optimizer" in chosen:
        chosen["optimizer"] = str(Named.parse(chosen["optimizer"]))
    if "scheduler" in chosen:
        chosen["scheduler"] = "+".join(map(str, split_schedulers(chosen["scheduler"])))
    return chosen


def with_learning_rate(options: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return options in which the optimizer has a learning rate.

    A scheduler that replaces it by a peak, as OneCycleLR does, gets the rate, too.

    Raises:
        OptionError: A scheduler has several rates.

    >>> with_learning_rate({"optimizer": "SGD:lr=0.1,momentum=0.9"}, 0.05)["optimizer"]
    'SGD:lr=0.05,momentum=0.9'
    """
    changed = dict(options)
    optimizer = Named.parse(options.get("optimizer", RunConfig.optimizer))
    changed["optimizer"] = str(optimizer.with_option("lr", rate))
    schedulers = split_schedulers(options.get("scheduler", RunConfig.scheduler))
    names = [each.name for each in schedulers]
    if "CyclicLR" in names:
        raise OptionError(
            "learning_rates have no effect with the scheduler 'CyclicLR', which sets rates of "
            "its own; list schedulers in the grid instead"
        )
    if "OneCycleLR" in names:
        changed["scheduler"] = "+".join(
            str(each.with_option("max_lr", rate) if each.name == "OneCycleLR" else each)
            for each in schedulers
        )
    return changed


def expand(
    base: Mapping[str, Any],
    tables: Sequence[Mapping[str, Any]],
    learning_rates: Sequence[float],
) -> list[Row]:
    """Return the rows of a grid: all combinations of the values of each table.

    Args:
        base: Options that all rows have.
        tables: Tables of options; each value is a list of values, or a single one.
        learning_rates: Learning rates of the tables that do not list their own.

    >>> [row.label for row in expand({}, [{"method": ["bp", "fdg"], "stages": [2, 4]}], ())]
    ['bp, stages 2', 'bp, stages 4', 'fdg, stages 2', 'fdg, stages 4']
    """
    cells: list[tuple[dict[str, Any], tuple[float, ...]]] = []
    for table in tables:
        axes = {name: as_list(values) for name, values in table.items() if name != RATES}
        rates = tuple(as_list(table.get(RATES, learning_rates)))
        for values in itertools.product(*axes.values()):
            cells.append((dict(zip(axes, values, strict=True)), rates))
    every = [{**vars(RunConfig()), **DEFAULTS, **base, **cell} for cell, _ in cells]
    names = list(dict.fromkeys(name for cell, _ in cells for name in cell))
    labels = label_rows(every, names)
    return [
        Row(label, {**base, **cell}, rates)
        for label, (cell, rates) in zip(labels, cells, strict=True)
    ]


def as_list(value: Any) -> list[Any]:
    """Return the values of a key of a table."""
    return list(value) if isinstance(value, list | tuple) else [value]


def label_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], always: str = ""
) -> list[str]:
    """Return the options in which rows differ, as a text for each row.

    Method and stages come first. Options that follow from those before them are left out, and
    the options of an option, such as an optimizer's, if its name is enough.

    Args:
        rows: Options of each row.
        names: Options that may tell rows apart; all are named if none does.
        always: Option that is named in any case.
    """
    varied = [n for n in names if n == always or any(row[n] != rows[0][n] for row in rows)]
    varied = varied or list(names)
    first = [name for name in ("method", "stages") if name in varied]
    shown: list[str] = []
    for name in dict.fromkeys([*first, *varied]):
        if name in first or not shown or not _follows(rows, shown, name):
            shown.append(name)
    texts = [_texts(name, [row[name] for row in rows]) for name in shown]
    return [", ".join(text[number] for text in texts) for number in range(len(rows))]


def _follows(rows: Sequence[Mapping[str, Any]], shown: Sequence[str], name: str) -> bool:
    """Return True if rows that agree in the shown options agree in another one."""
    values = {(tuple(str(row[n]) for n in shown), str(row[name])) for row in rows}
    return len(values) == len({before for before, _ in values}) and len(rows) > 1


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    """Return an option as text for each of its values: ``stages 4``, ``optimizer Muon``."""
    if name == "method":
        return [plain_option(value) for value in values]
    short = {str(value): str(value).split(":")[0] for value in values}
    if len(set(short.values())) < len(short):
        short = {str(value): plain_option(value) for value in values}
    return [f"{name.replace('_', ' ')} {short[str(value)]}" for value in values]


def plain_option(value: Any) -> str:
    """Return a value as text that reads well: ``fdg shrink=0.5``."""
    text = str(value)
    return re.sub(r"(?<=\w):(?=\w)", " ", text) if isinstance(value, str) else text
