"""The hours of published trainings, computed from a few steps."""

from pathlib import Path

import pytest
import torch

from benchmarks.harness.record import Record
from benchmarks.published import NETWORKS, PublishedSettings, measure_published
from benchmarks.report.render import render
from hocket import zoo
from hocket.errors import OptionError
from hocket.options import Named


def test_hours_follow_from_timed_steps(tmp_path: Path) -> None:
    measure_published(PublishedSettings(out=tmp_path, rows=("resnet20",), steps=1))
    (row,) = Record.read(tmp_path).rows
    assert row["hours"] == pytest.approx(row["sample_s"] * 50_000 * 300 / 3600)
    assert row["all_hours"] == pytest.approx(row["hours"] * 3 * 3)  # rows, and runs of each
    render(tmp_path)
    assert "| resnet20 | FDG (1906.09108), table 2 |" in (tmp_path / "README.md").read_text()


def test_two_papers_of_one_network_share_its_time(tmp_path: Path) -> None:
    measure_published(PublishedSettings(out=tmp_path, rows=("resnet110",), steps=1))
    fdg, dgl = Record.read(tmp_path).rows
    assert fdg["sample_s"] == dgl["sample_s"]
    assert (fdg["runs"], dgl["runs"]) == (3, 1)
    assert dgl["all_hours"] == pytest.approx(dgl["hours"] * 3)


@pytest.mark.parametrize("network", NETWORKS)
def test_each_network_of_the_papers_can_be_built(network: str) -> None:
    parsed = Named.parse(network)
    side = NETWORKS[network].side
    with torch.device("meta"):
        built = zoo.create_fitted(parsed.name, (3, side, side), 10, **parsed.options)
        assert built(torch.zeros(2, 3, side, side)).shape == (2, 10)


def test_settings_out_of_range_are_refused() -> None:
    text = r"(?s)steps is 0; give 1.*unknown network 'mlp'"
    with pytest.raises(OptionError, match=text):
        PublishedSettings(rows=("mlp",), steps=0)
