"""Checks of a study before anything runs; one error lists all that they find."""

import math
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import Problems
from hocket.methods import METHODS, Method, method_options, parse_method
from hocket.options.common_options import RANGES
from hocket.options.hints import wrong_options
from hocket.options.ranges import Range
from hocket.runs.config import RUN_RANGES, RunConfig
from hocket.runs.resolve import ResolvedRun
from hocket_lab.studies.rows import RATES, Row, Run, as_list, expand
from hocket_lab.studies.target import Target, check_metric

MOST_RUNS = 10_000
"""Most trainings of a study, each of which is checked before the first begins."""
REFUSED: Mapping[str, str] = {
    "seed": "list seeds under the key 'seeds'",
    "run_dir": "each run gets a folder of its own",
}
"""Options that a study does not take, and the advice."""


def study_problems(values: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """Return every problem of a study, from the values and the types of all its keys."""
    # Types. A value of a wrong type has no other check.
    problems = wrong_options(values, hints, hints)
    given = {
        name: value
        for name, value in values.items()
        if not wrong_options({name: value}, hints, hints)
    }
    # Keys of the study.
    problems += _list_problems(given)
    problems += _metric_problems(given)
    if given.get("jobs", 0) < 0:
        problems.append(f"jobs is {given['jobs']}; give at least 1, or 0 for one for each core")
    name = given.get("name", "study")
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        problems.append(f"name is {name!r}; give one that can be the name of a folder")
    # Tables of options.
    base, tables = given["base"], grid_tables(given["grid"])
    if not isinstance(base, Mapping):
        problems.append(f"base is {base!r}; wanted a table of options")
        base = {}
    problems += _option_problems("base", base)
    if not tables or any(not isinstance(t, Mapping) or not set(t) - {RATES} for t in tables):
        problems.append(
            "grid is empty; give it an option with the values to compare, such as "
            "method = ['bp', 'fdg']"
        )
        tables = []
    for number, table in enumerate(tables, 1):
        where = "grid" if len(tables) == 1 else f"grid, table {number}"
        problems += _option_problems(where, {n: v for n, v in table.items() if n != RATES})
        problems += _rate_problems(f"{where}: {RATES}", table.get(RATES, []))
    # Rows and their runs, unless these would fill the memory.
    rates = _valid_rates(given).get(RATES, ())
    if (runs := _count_runs(given, tables)) > MOST_RUNS:
        return [*problems, f"it has {runs} runs; use at most {MOST_RUNS}"]
    rows = expand(
        _valid(base), [_valid(t, lists=True) | _valid_rates(t) for t in tables or [{}]], rates
    )
    compares = any(row.learning_rates for row in rows)
    if given.get("seeds_for_sweep") is not None and not compares:
        problems.append("seeds_for_sweep has no effect without learning_rates; give both")
    problems += _hold_out_problems(given, [base, *tables], compares=compares)
    return problems + _row_problems(rows)


def _count_runs(given: Mapping[str, Any], tables: Sequence[Any]) -> int:
    """Return the number of trainings of a study."""
    axes = [
        {RATES: given.get(RATES, []), **table}.values()
        for table in tables
        if isinstance(table, Mapping)
    ]
    # No learning rates make one run; other empty lists are refused.
    rows = sum(math.prod(len(as_list(values)) or 1 for values in each) for each in axes)
    return rows * (len(given.get("seeds", [0])) or 1)


def _hold_out_problems(
    given: Mapping[str, Any], tables: Sequence[Any], *, compares: bool
) -> list[str]:
    """Return the problems of the share that is held out while learning rates are compared."""
    share, key = given.get("hold_out_for_sweep"), "hold_out_for_sweep"
    if not share:
        return []
    if share not in (allowed := RUN_RANGES["hold_out"]):
        return [f"{key} is {share}; use {allowed}"]
    problems = []
    if not compares:
        problems.append(f"{key} has no effect without learning_rates; give both")
    if any(isinstance(table, Mapping) and "hold_out" in table for table in tables):
        problems.append(
            f"{key} is {share} and hold_out is given; the results would not be of the test, so "
            "give one of both"
        )
    return problems


def grid_tables(grid: Any) -> list[Any]:
    """Return the tables of a grid, which may be a single one."""
    return [grid] if isinstance(grid, Mapping) else as_list(grid)


def _list_problems(given: Mapping[str, Any]) -> list[str]:
    """Return the problems of learning rates and seeds."""
    problems = _rate_problems(RATES, given.get(RATES, []))
    for key in ("seeds", "seeds_for_sweep"):
        seeds = given.get(key)
        if seeds is None:
            continue
        if not seeds:
            problems.append(f"{key} is empty; give at least one seed")
        if twice := sorted({seed for seed in seeds if list(seeds).count(seed) > 1}):
            problems.append(f"{key} has {twice[0]} twice; list each seed once")
        problems += [
            f"{key} has {seed}; use {RANGES['seed']}"
            for seed in seeds
            if seed not in RANGES["seed"]
        ]
    compared = given.get("seeds_for_sweep") or ()
    if given.get("seeds") and (further := [s for s in compared if s not in given["seeds"]]):
        problems.append(f"seeds_for_sweep has {further[0]}, which is none of the seeds")
    return problems


def _rate_problems(key: str, rates: Any) -> list[str]:
    """Return the problems of a list of learning rates."""
    if problems := wrong_options({key: as_list(rates)}, [key], {key: Sequence[float]}):
        return problems
    listed, positive = as_list(rates), Range(above=0)
    problems = [f"{key} has {rate}; use {positive}" for rate in listed if rate not in positive]
    if twice := sorted({rate for rate in listed if listed.count(rate) > 1}):
        problems.append(f"{key} has {twice[0]} twice; list each rate once")
    return problems


def _metric_problems(given: Mapping[str, Any]) -> list[str]:
    """Return the problems of the target and of the metric that selects."""
    problems = Problems()
    if (text := given.get("target")) is not None:
        problems.attempt(Target.parse, text)
    if (name := given.get("select")) is not None:
        problems.attempt(check_metric, "select", name)
    return problems


def _option_problems(where: str, table: Mapping[str, Any]) -> list[str]:
    """Return the problems of the names and the types of a table of options."""
    hints = typing.get_type_hints(RunConfig)
    problems = [
        f"{where}: {name} does not belong there: {advice}"
        for name, advice in REFUSED.items()
        if name in table
    ]
    for name, value in table.items():
        if name not in hints and (advice := _advice_on(name)):
            problems.append(f"{where}: {name} is no option: {advice}")
            continue
        values = [value] if where == "base" else as_list(value)
        if not values:
            problems.append(f"{where}: {name} is an empty list; give at least one value")
        for each in values:
            if isinstance(each, Method):
                problems.append(
                    f"{where}: {name} is a Method object; write it as text, with its options "
                    'behind its name: "fdg:shrink=0.5"'
                )
                continue
            found = wrong_options({name: each}, hints, hints)
            problems += [f"{where}: {text}" for text in found]
    return list(dict.fromkeys(problems))


def _advice_on(name: str) -> str:
    """Return how to write an option of an optimizer or a method; nothing for other names."""
    if name in ("lr", "learning_rate"):
        return 'write optimizer = "SGD:lr=0.1", or learning_rates = [0.05, 0.1]'
    option = name.removeprefix("method.")
    if name != option or any(option in method_options(method) for method in METHODS):
        return f'write it behind the method, as in method = ["fdg:{option}=...", ...]'
    return ""


def _valid(table: Mapping[str, Any], *, lists: bool = False) -> dict[str, Any]:
    """Return the options of a table that exist, with their values of the right type."""
    hints = typing.get_type_hints(RunConfig)
    valid: dict[str, Any] = {}
    for name, value in table.items():
        each = as_list(value) if lists else [value]
        right = [v for v in each if not wrong_options({name: v}, hints, hints)]
        if right and name not in REFUSED:
            valid[name] = right if lists else right[0]
    return valid


def _valid_rates(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rates of a table, if it has some without a problem."""
    has_some = RATES in table and not _rate_problems(RATES, table[RATES])
    return {RATES: table[RATES]} if has_some else {}


def _row_problems(rows: Sequence[Row]) -> list[str]:
    """Return the problems of the configurations of rows, each with the first such row."""
    found: dict[str, str] = {}
    first: dict[str, Row] = {}
    for row in rows:
        for text in (p for rate in row.rates for p in _run_problems(row, rate, first)):
            found.setdefault(text, row.label)
    return [f"row {label!r}: {text}" for text, label in found.items()]


def _run_problems(row: Row, rate: float | None, first: dict[str, Row]) -> list[str]:
    """Return the problems of a row's runs with a learning rate.

    The first row of each run is known by the run's name; the row is added if it is the first.
    """
    problems = Problems()
    run: Run | None = problems.attempt(row.run, rate, seed=0)
    if run is None:
        problems.attempt(parse_method, row.options.get("method", RunConfig.method))
        return problems
    # What it names does not exist, or not here.
    problems.attempt(ResolvedRun.from_config, run.config)
    if (place := run.config.data_dir) is not None and not os.path.exists(place):
        problems.append(f"data_dir is {str(place)!r}, which does not exist or is closed to you")
    if (other := first.setdefault(run.name, row)) is not row:
        problems.append(f"it has the same runs as row {other.label!r}; list it once")
    return problems
