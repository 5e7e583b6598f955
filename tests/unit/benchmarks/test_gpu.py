"""The comparison on a GPU, on the processor where there is none."""

import re

import pytest
import torch

from benchmarks import gpu as module
from benchmarks.gpu import GRAPH_ROWS, ROWS, GpuSettings, measure_gpu
from benchmarks.gpu_graphs import GraphSettings, measure_gpu_graphs
from benchmarks.harness.record import Record
from benchmarks.report.render import render
from hocket.errors import HocketError, OptionError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"device": DEVICE, "networks": ("perceptron",), "pairs": 1, "steps": 1}


def test_every_row_is_compared_with_a_plain_loop(tmp_path, monkeypatch, capsys):
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: compiled.append(f) or f)
    measure_gpu(GpuSettings(out=tmp_path, **SMALL))
    rows = Record.read(tmp_path).rows
    assert [row["row"] for row in rows] == list(ROWS)
    assert len(compiled) == 1 + 1 + 2  # a plain loop, bp, and two stages of fdg
    for row in rows:
        assert row["network"] == "perceptron"
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert (row["peak_mib"] is None) == (DEVICE == "cpu" or "processes" in row["row"])
        more_s = row["sample_s"] - row["plain_sample_s"]
        assert row["stage_tick_ms"] == pytest.approx(
            1000 * row["batch"] * more_s / row["stages"]
        )
    assert "perceptron, bp: " in capsys.readouterr().err
    render(tmp_path)
    assert (tmp_path / "gpu.svg").is_file()
    shown = (tmp_path / "README.md").read_text()
    assert "| perceptron | fdg, 2 stages |" in shown
    assert "same bits" not in shown


def test_rows_with_and_without_graphs_learn_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    measure_gpu_graphs(GraphSettings(out=tmp_path, **SMALL))
    rows = Record.read(tmp_path).rows
    assert [row["row"] for row in rows] == list(GRAPH_ROWS)
    assert all(row["same_bits"] is (True if "graphs" in row["row"] else None) for row in rows)
    render(tmp_path)
    shown = (tmp_path / "README.md").read_text()
    assert re.search(r"^\| perceptron \| paci, 2 stages, graphs \|.* \| True \|$", shown, re.M)


def test_a_launch_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "launch", lambda *_, **__: 3)
    with pytest.raises(HocketError, match="fdg in 2 processes ended with 3"):
        measure_gpu(GpuSettings(out=tmp_path, rows=("fdg, 2 processes",), **SMALL))


def test_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="device is 'cuda', and PyTorch finds no GPU here"):
        measure_gpu()
