"""Rows over links of several rates, with the bytes that each sends."""

import pytest

from benchmarks.harness import nodes
from benchmarks.harness.nodes import NodesError
from benchmarks.harness.record import Record
from benchmarks.link import LinkSettings, measure_link
from end_to_end.namespaces import machines


@pytest.fixture
def possible():
    with machines():
        pass


def measure(out, **options):
    settings = LinkSettings(
        **{"out": out, "network": "mlp:hidden=[64,64,64]", "shape": (16,), "batch": 8}
        | {"repetitions": 2, "seconds": 0.05, "channels_last": False}
        | options
    )
    measure_link(settings)
    return Record.read(out)


@pytest.mark.usefixtures("possible", "row_server")
def test_the_record_has_every_row_at_every_rate(tmp_path, capsys):
    rows = ["bp", "ddp", "fdg:extra_delay=1"]
    record = measure(tmp_path, rows=rows, mbit_s=(1000, 100))
    labels = ["bp", "ddp", "fdg extra_delay=1"]
    assert [(row["row"], row["mbit_s"]) for row in record.rows] == [
        (label, rate) for rate in (1000, 100) for label in labels
    ]
    alone, shared, decoupled = record.rows[:3]
    assert (alone["processes"], shared["processes"], decoupled["processes"]) == (1, 2, 2)
    assert decoupled["choices"]["delay"] == 4
    assert all(row["ms_min"] <= row["ms_per_sample"] <= row["ms_max"] for row in record.rows)
    # Less than an activation: the kernel greets its neighbours on a link that is new.
    assert alone["sent_mib"] == pytest.approx([0], abs=1e-3)
    # All gradients of data parallelism cross the link, and one activation of a method.
    weights_mib = record.settings["parameters"] * 4 / 2**20
    assert max(shared["sent_mib"]) > weights_mib
    assert 0 < max(decoupled["sent_mib"]) < weights_mib
    assert "100 Mbit/s, fdg extra_delay=1: " in capsys.readouterr().err


def test_what_was_sent_is_counted_on_the_link_only(tmp_path, monkeypatch):
    """A machine that cannot be two is refused before anything starts."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NodesError, match="need root"):
        measure(tmp_path)
    assert list(tmp_path.iterdir()) == []
    counts = tmp_path / "dev"
    heads = "Inter-| Receive | Transmit\n face |bytes packets ...\n"
    counts.write_text(heads + "    lo: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(nodes, "COUNTS", counts)
    assert nodes.read_sent_bytes() == 0
    with counts.open("a") as file:
        file.write("hocket0: 3 0 0 0 0 0 0 0 4567 0 0 0 0 0 0 0\n")
    assert nodes.read_sent_bytes() == 4567
