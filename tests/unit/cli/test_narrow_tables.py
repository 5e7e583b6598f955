"""At any width of the terminal every number of a table is printed whole."""

import re
from pathlib import Path

import pytest

from hocket.cli.output import print_tables
from hocket.runs.summary import Summary
from hocket.runs.tables import (
    METHOD_COLUMNS,
    data_table,
    method_rows,
    method_table,
    option_table,
    summary_tables,
)
from hocket.training.results.metrics import EpochResult

WIDTHS = (40, 80, 100, 120, 200)


def printed(capsys, monkeypatch, width, *tables):
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(*tables)
    return capsys.readouterr().out


def words(text):
    return re.findall(r"[\w.,:%=()/-]+", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_value_of_the_methods_is_cut(capsys, monkeypatch, width):
    text = printed(capsys, monkeypatch, width, method_table(4))
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    found = set(words(text))
    for row in method_rows(4):
        assert set(words(" ".join(row[:-1]))) <= found  # all but the paper, which is prose
    assert {name for name in METHOD_COLUMNS if name in text} == set(METHOD_COLUMNS)


@pytest.mark.parametrize("width", WIDTHS)
def test_prose_breaks_between_words(capsys, monkeypatch, width):
    text = printed(capsys, monkeypatch, width, option_table(), data_table())
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text


def test_no_number_of_a_result_is_cut(capsys, monkeypatch):
    epochs = (EpochResult(0, 1.23456789, None, 1.0, 8, (0.0,), (0,)),)
    summary = Summary("finished", "", Path("runs/mine"), epochs, 12345.6, 98765.4, (), ())
    text = printed(capsys, monkeypatch, 40, *summary_tables(summary))
    assert {"1.2346", "12345.6", "98765.4"} & set(words(text))
    assert "…" not in text
