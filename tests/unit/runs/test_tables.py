"""Tables list every method with the numbers of its formulas, and every result."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from contract.small import mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import METHODS, method_options
from hocket.remedies import REMEDIES, remedy_options
from hocket.runs.summary import Summary, parse_stage_summary
from hocket.runs.tables import (
    METHOD_COLUMNS,
    method_markdown,
    method_rows,
    method_table,
    option_table,
    remedy_table,
    summary_tables,
)
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.transport.stats import ReceiveStats
from unit.lab.report import made_runs


def printed(table):
    console = Console(width=300, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_tables_list_every_remedy_and_every_option():
    shown = printed(remedy_table())
    for name, remedy in REMEDIES.items():
        assert name in shown
        assert remedy.paper in shown
        for option, value in remedy_options(name).items():
            assert f"{option}={value}" in shown
    options = printed(option_table())
    for name in METHODS:
        assert name in options
        for option, default in method_options(name).items():
            assert f"{option}={default}" in options


@pytest.mark.parametrize("stages", [1, 4, 5, 8])
def test_a_method_that_is_refused_has_no_figures_and_a_reason(stages):
    """The Trainer refuses the same ones."""
    table = " ".join(printed(method_table(stages)).split())
    markdown = method_markdown(stages)
    rows = [dict(zip(METHOD_COLUMNS, row, strict=True)) for row in method_rows(stages)]
    for name, row in zip(METHODS, rows, strict=True):
        assert row["method"] == name
        figures = [row[key] for key in ("delay", "staleness", "graphs", "inputs", "versions")]
        try:
            Trainer(mlp(stages), method=METHODS[name](), optimizer=sgd)
            reason = ""
        except OptionError as error:
            reason = str(error)
        assert (figures == ["-"] * 5) == ("-" in figures) == bool(reason)
        assert reason in table
        assert reason in markdown
        assert bool(reason) == (f"method '{name}'" in table)


STAGE = replace(parse_stage_summary(made_runs.STAGE), parameters=1234, busy=0.75)


def tables_of(*stages, state="finished", epochs=()):
    """Print the tables of a run; the words of the rows of each."""
    cuts = tuple("ab"[: max(len(stages) - 1, 0)])
    summary = Summary(state, "", Path("runs/x"), epochs, 1.0, 1.0, stages, cuts)
    return [printed(table) for table in summary_tables(summary)]


def words_of(table):
    return [[w for w in line.split() if w != "│"] for line in table.splitlines()]


def test_a_training_interrupted_in_its_first_epoch_has_dashes():
    stage = replace(STAGE, staleness=None)
    whole, stages, times = tables_of(stage, state="interrupted")
    assert "interrupted: runs/x" in whole
    assert whole.splitlines()[4].count(" - ") == 3, "training loss, test loss and error"
    assert "1,234" in stages
    assert " - " in stages, "staleness"
    assert "75.0%" in times
    assert "2 ticks" in stages


def test_networks_with_heads_have_a_table_of_exits():
    evaluation = EvaluationResult(0.5, 0.25, 8, exits=(0.5, 0.375, 0.25), ensemble=0.125)
    epoch = EpochResult(0, 1.0, evaluation, 1.0, 8, (0.0, 0.0, 0.0), (0, 0, 0))
    *others, exits = tables_of(epochs=(epoch,))
    rows = [line.split("│")[1:3] for line in exits.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["head of stage 0", "50.00%"],
        ["head of stage 1", "37.50%"],
        ["network", "25.00%"],
        ["ensemble", "12.50%"],
    ]
    without = replace(epoch, evaluation=EvaluationResult(0.5, 0.25, 8))
    assert len(tables_of(epochs=(without,))) == len(others)


def test_stages_with_a_codec_or_a_replay_buffer_have_a_table_of_it():
    first = replace(STAGE, compression=31.4, lost=0.123, perplexity=97.6)
    second = replace(STAGE, compression=3.99, lost=0.004)
    *_, codes = tables_of(first, second, STAGE)
    rows = [row[1:] for row in words_of(codes)]
    assert ["31.4", "times", "12.3%", "98"] in rows
    assert ["4.0", "times", "0.4%", "-"] in rows
    counts = {"arrived": 1200, "drawn": 1100, "reused": 30, "dropped": 90, "lost": 4}
    stats = ReceiveStats(**counts, refused=7, buffer_bytes=3 * 2**20)
    *_, draws = tables_of(replace(STAGE, unsent=12), replace(STAGE, receive_stats=stats))
    rows = words_of(draws)
    assert ["1", "12", "1,200", "1,100", "30", "90", "4", "7", "3.0", "MiB"] in rows
    assert [row for row in rows if row[:1] == ["0"]] == []
