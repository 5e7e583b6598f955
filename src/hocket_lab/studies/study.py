"""Study: rows of options, learning rates and seeds to train with, and what to compare."""

import shlex
import tomllib
import typing
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from hocket.errors import OptionError, Problems, format_problems
from hocket.files import open_regular_file
from hocket.options.hints import wrong_options
from hocket.runs.own_code import OPTIONS, own_functions, refuse_code
from hocket_lab.studies.checks import grid_tables, study_problems
from hocket_lab.studies.rows import Row, Run, as_list, expand
from hocket_lab.studies.target import Target

FILE_LIMIT = 2**20
"""Most bytes of a study file that is read."""
OwnCode: TypeAlias = Mapping[str, str | Sequence[str]]
"""Values of a study's file whose code may be run, by option."""
_NO_CODE: OwnCode = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Study:
    """Trainings that are compared with each other; a TOML file has the same keys.

    Attributes:
        name: Title of the record, and name of the folder; of a file, its name.
        base: Options of `hocket train` that all runs have.
        grid: A table of options, each with one value or a list of values, of which all
            combinations are rows; or several such tables, whose rows follow each other. A table
            may have ``learning_rates``, too.
        learning_rates: Learning rates of which each row chooses its best; none to use the
            optimizers' as they are written.
        seeds: Seeds of each row.
        seeds_for_sweep: Seeds with which the learning rates are compared; the others are run
            with the best one only. All if not given.
        hold_out_for_sweep: Share of the training examples that takes the place of the test
            while learning rates are compared; 0 to compare them by the test. All seeds are then
            run with the best rate, on all training examples.
        target: A metric and its limit: ``test_loss <= 1.90``.
        select: Metric that chooses the learning rate, and that is shown; by default the
            target's, or else ``test_loss``.
        jobs: Number of runs at a time; 0 for as many as there are cores for their threads.
        file: File that it was read from, which is no key; None if a program made it.

    Raises:
        OptionError: With every key, option or value that is wrong.

    >>> study = Study(name="small", grid={"method": ["bp", "fdg"]}, seeds=[0, 1])
    >>> [run.title for run in study.runs()]
    ['bp, seed 0', 'bp, seed 1', 'fdg, seed 0', 'fdg, seed 1']
    """

    name: str
    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
    learning_rates: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    seeds_for_sweep: Sequence[int] | None = None
    hold_out_for_sweep: float = 0.0
    target: str | None = None
    select: str | None = None
    jobs: int = 0
    file: Path | None = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        problems = Problems(study_problems(self.as_dict(), _key_hints()))
        problems.raise_together(f"study {self.name!r} is impossible")
        for key, value in self.as_dict().items():  # which its caller may change later
            object.__setattr__(self, key, deepcopy(value))

    @staticmethod
    def read(file: Path | str, *, own_code: OwnCode = _NO_CODE, **changes: Any) -> "Study":
        """Read a study from a TOML file.

        Args:
            file: The file.
            own_code: Values of the file whose code may be run, by option:
                ``{"network": "own.py:function"}``.
            changes: Keys that replace the file's; of a table, such as ``base``, only the
                options that are given.

        Raises:
            OptionError: It cannot be read, would run code that is not named here, or with every
                key, option or value that is wrong.
        """
        # Read the file, and change what is to be changed.
        file = Path(file)
        values = {"name": file.stem, **_read_toml(file)}
        for key, value in changes.items():
            merged = isinstance(value, Mapping) and isinstance(values.get(key, {}), Mapping)
            values[key] = {**values.get(key, {}), **value} if merged else value
        # Refuse code before a check imports it.
        named = own_choices(values)
        codes = [(key, text) for key, texts in own_code.items() for text in as_list(texts)]
        allowed = {function for _, text in codes for function in own_functions(text)}
        refuse_code(
            [each for each in named if not set(own_functions(each[1])) <= allowed], str(file)
        )
        # Collect all problems.
        hints = _key_hints()
        problems = Problems(wrong_options(values, hints, {}, kind="key"))
        valid = {key: value for key, value in values.items() if key in hints}
        study = problems.attempt(Study, **valid)
        found = [function for _, text in named for function in own_functions(text)]
        problems += [
            f"{option} is {text!r}, but the study names no such function of a file; drop "
            f"--{option} {shlex.quote(text)}"
            for option, text in codes
            if not own_functions(text) or not set(own_functions(text)) <= set(found)
        ]
        tables = grid_tables(values.get("grid", ()))
        in_grid = any(isinstance(table, Mapping) and "data_dir" in table for table in tables)
        if "data_dir" in changes.get("base", {}) and in_grid:
            problems.append(
                "data_dir is given, but the grid has its own; drop --data-dir, or take it out "
                "of the grid"
            )
        if problems:
            raise OptionError(format_problems(f"cannot use the study {str(file)!r}", problems))
        # Remember the file if the command line can make the same changes.
        base = changes.get("base", {})
        if changes.keys() <= {"jobs", "base"} and base.keys() <= {"data_dir"}:
            object.__setattr__(study, "file", file)
        return study

    def as_dict(self) -> dict[str, Any]:
        """Return the values of its keys."""
        return {key: getattr(self, key) for key in _key_hints()}

    @property
    def rows(self) -> list[Row]:
        """Rows of the table."""
        return expand(self.base, grid_tables(self.grid), self.learning_rates)

    @property
    def goal(self) -> Target | None:
        """Target; None if there is none."""
        return None if self.target is None else Target.parse(self.target)

    @property
    def metric(self) -> str:
        """Metric that chooses the learning rate."""
        return self.select or (self.goal.metric if self.goal else "test_loss")

    @property
    def sweep_seeds(self) -> tuple[int, ...]:
        """Seeds with which the learning rates are compared."""
        return tuple(self.seeds if self.seeds_for_sweep is None else self.seeds_for_sweep)

    @property
    def later_seeds(self) -> tuple[int, ...]:
        """Seeds that are run with the best learning rate only."""
        if self.hold_out_for_sweep:
            return tuple(self.seeds)
        return tuple(seed for seed in self.seeds if seed not in self.sweep_seeds)

    def sweep_runs(self, row: Row, rate: float | None) -> list[Run]:
        """Return the runs of a row that compare a learning rate with others.

        The optimizer's own rate, None, needs no run on less data.
        """
        if rate is None and self.hold_out_for_sweep:
            return []
        share = self.hold_out_for_sweep
        return [row.run(rate, seed, hold_out=share) for seed in self.sweep_seeds]

    def later_runs(self, row: Row, rate: float | None) -> list[Run]:
        """Return the runs of a row that are made with its best learning rate only."""
        return [row.run(rate, seed) for seed in self.later_seeds]

    def runs(self) -> list[Run]:
        """Return all runs that the study may need: each rate of each row with each seed."""
        return [
            run
            for row in self.rows
            for rate in row.rates
            for run in (*self.sweep_runs(row, rate), *self.later_runs(row, rate))
        ]


def _key_hints() -> dict[str, Any]:
    """Return the types of the keys of a study."""
    hints = typing.get_type_hints(Study)
    return {key.name: hints[key.name] for key in fields(Study) if key.init}


def _read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        OptionError: It is missing, too long, or not TOML.
    """
    try:
        with open_regular_file(file, follow_links=True) as opened:
            content = opened.read(FILE_LIMIT + 1)
    except OSError as error:
        raise OptionError(f"cannot read the study {str(file)!r}: {error.strerror}") from error
    if len(content) > FILE_LIMIT:
        raise OptionError(
            f"the study {str(file)!r} is longer than the {FILE_LIMIT} bytes that are read"
        )
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the study {str(file)!r} is not TOML: {error}") from error


def own_choices(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return options of a study with values that name the user's code, unchecked."""
    tables = [values.get("base"), *grid_tables(values.get("grid", ()))]
    choices = [
        (option, text)
        for t in tables
        if isinstance(t, Mapping)
        for option in OPTIONS
        for text in as_list(t.get(option))
        if own_functions(text)
    ]
    return list(dict.fromkeys(choices))
