"""Times over links with latency, beside their forecasts."""

import socket
import threading
import time
from pathlib import Path

import pytest

from benchmarks.harness.nodes import NodesError
from benchmarks.harness.record import Record
from benchmarks.harness.relay import relayed_nodes
from benchmarks.report.tables_networks import window_table
from benchmarks.window import WindowSettings, measure_window
from hocket.errors import OptionError


@pytest.fixture
def possible() -> None:
    try:
        with relayed_nodes(2):
            pass
    except NodesError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("possible")
def test_a_relay_delays_what_crosses_it_and_nothing_is_left() -> None:
    before = threading.active_count()
    with relayed_nodes(3) as (nodes, relay):
        relay.latency_s = 0.05
        servers = []

        def listen() -> None:
            nodes[2].enter()
            servers.append(socket.create_server((nodes[2].address, 0)))

        trips_s = []

        def connect() -> None:
            nodes[0].enter()
            start_s = time.perf_counter()
            with socket.create_connection(servers[0].getsockname(), timeout=60):
                trips_s.append(time.perf_counter() - start_s)

        for action in (listen, connect):  # each in a thread of its own, which enters the node
            thread = threading.Thread(target=action)
            thread.start()
            thread.join()
        servers[0].close()
    assert trips_s[0] >= 2 * 0.05
    assert threading.active_count() == before


@pytest.mark.usefixtures("possible")
def test_the_record_has_every_row_over_every_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = WindowSettings(
        out=tmp_path,
        rows=("bp", "ddg"),
        stages=(2,),
        latency_ms=(0, 30),
        repetitions=1,
        steps=4,
        batch=8,
        network="mlp:hidden=[64,64,64]",
        shape=(16,),
    )
    measure_window(settings)
    record = Record.read(tmp_path)
    late = [row for row in record.rows if row["latency_ms"] == 30]
    assert [(row["row"], bool(row["extra_delay"])) for row in late] == [
        ("bp", False),
        ("ddg", False),
        ("ddg", True),
    ]
    bp, ddg, hidden = late
    assert min(bp["measured_min"], bp["law_ms"]) >= 60
    assert min(ddg["measured_min"], ddg["law_ms"]) >= 30
    assert hidden["law_ms"] < ddg["law_ms"]
    assert hidden["staleness"] > ddg["staleness"] == 1
    assert "2 stages, 30 ms, ddg (extra -): law " in capsys.readouterr().err
    assert "| 2 | 30 | bp | - | 0 |" in window_table(record)


def test_all_numbers_out_of_range_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError,
        match=r"(?s)steps is 0.*stages is 1; give 2.*latency is -1; give 0.*mbit_s is 0; give",
    ):
        WindowSettings(out=tmp_path, stages=(1,), latency_ms=(-1,), mbit_s=0, steps=0)
    with pytest.raises(OptionError, match="the stages of 'dgl-async' run freely"):
        WindowSettings(rows=("dgl-async",))
