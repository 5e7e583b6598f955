"""Two nodes are connected by their link only, and leave nothing behind."""

import os
import shutil
import socket

import pytest

from benchmarks.harness import nodes
from benchmarks.harness.nodes import INTERFACE, NodesError, two_nodes
from benchmarks.harness.record import Record
from benchmarks.idle_link import (
    IdleLinkSettings,
    connected,
    measure_idle_link,
    time_messages,
)
from benchmarks.link import LinkSettings, measure_link
from benchmarks.report.tables_speed import idle_link_table
from end_to_end.namespaces import machines


@pytest.fixture
def link():
    with machines() as link:
        yield link


def seconds_for(link, size):
    """Return the seconds for these bytes from one node to the other."""
    with connected(link.nodes, "cubic") as (sender, receiver):
        (took,) = time_messages(sender, receiver, size, pause_s=0, count=1)
    return took


def test_a_link_lets_through_what_it_is_told(link):
    megabit = 125_000
    link.limit(10)
    slow_s = seconds_for(link, 4 * megabit)
    assert slow_s > 0.3
    link.limit(1000)
    assert min(seconds_for(link, 4 * megabit) for _ in range(10)) < slow_s


def test_a_node_sees_its_own_end_of_the_link_and_loopback_only(link):
    seen = {name for _, name in link.nodes[0].call(socket.if_nameindex)}
    assert {"lo", INTERFACE} <= seen
    assert not {"eth0", "wlan0"} & seen
    assert INTERFACE not in {name for _, name in socket.if_nameindex()}


def test_nothing_is_left_of_them(link):
    before = len(os.listdir("/proc/self/fd"))
    with two_nodes() as other:
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert os.stat(other.nodes[0].namespace).st_ino
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_that_is_missing_is_told_at_once(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool != "ip" else "/sbin/ip")
    with pytest.raises(NodesError, match=r"(?s)need root; .*no tc and no nsenter; install"):
        two_nodes().__enter__()


def test_rights_that_are_withheld_are_named(monkeypatch):
    class Libc:
        def unshare(self, _):
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(NodesError, match=r"unshare gives .*CAP_SYS_ADMIN, which containers"):
        two_nodes().__enter__()


def measure(out, **options):
    settings = LinkSettings(
        **{"out": out, "network": "mlp:hidden=[64,64,64]", "shape": (16,), "batch": 8}
        | {"repetitions": 2, "seconds": 0.05, "channels_last": False}
        | options
    )
    measure_link(settings)
    return Record.read(out)


@pytest.mark.usefixtures("link", "row_server")
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


def test_messages_after_pauses_take_the_time_of_the_link_or_more(tmp_path):
    settings = IdleLinkSettings(
        out=tmp_path, link="1Gbit,5ms", mib=[0.01, 0.1], pauses=[0.02], rounds=1, messages=1
    )
    try:
        measure_idle_link(settings)
    except NodesError as error:
        pytest.skip(str(error))
    record = Record.read(tmp_path)
    assert [(row["mib"], row["slow_start"]) for row in record.rows] == [
        (0.01, True), (0.01, False), (0.1, True), (0.1, False)
    ]  # fmt: skip
    assert all(row["median_s"] >= row["least_s"] > 0.005 for row in record.rows)
    assert "| 0.1 | 0.02 | 0 | 6 | " in idle_link_table(record)
