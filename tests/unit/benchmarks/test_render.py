import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import hocket_lab
from benchmarks.harness.record import Record
from benchmarks.report.render import (
    excerpt,
    insert_excerpt,
    provenance,
    record_table,
    render,
    stale_excerpts,
)
from hocket.errors import DataError
from unit.lab.studies.in_process import pretend_runs, run_here


def overhead_record() -> Record:
    common = {
        "parameters": 200,
        "extra_parameters": 0,
        "plain_sample_s": 0.004,
        "graphs": 3,
        "inputs": 4,
        "versions": 5,
    }
    kept = {"row": "fdg", "linearize": "stash", "goal": 1.1, "ratio": 1.05, "sample_s": 0.0042}
    lost = {
        "row": "fr",
        "linearize": "recompute",
        "goal": 1.45,
        "ratio": 1.5,
        "sample_s": 0.006,
    }
    heads = {"row": "dgl", "linearize": None, "goal": None, "ratio": 1.2, "sample_s": 0.0048}
    rows: list[dict[str, Any]] = [
        common | kept | {"ratio_min": 1.01, "ratio_max": 1.09, "peak_mib": 300.4},
        common | lost | {"ratio_min": 1.4, "ratio_max": 1.6, "peak_mib": 200.0},
        common
        | heads
        | {"ratio_min": 1.1, "ratio_max": 1.3, "peak_mib": None, "extra_parameters": 50},
    ]
    return Record.begin("overhead", "python -m benchmarks overhead", {}, threads=1).with_rows(
        rows
    )


def speed_record() -> Record:
    settings = {
        "network": "resnet20",
        "batch": 128,
        "stages": 2,
        "repetitions": 5,
        "steps": 4,
        "foreign": 0.04,
    }
    common = {"threads": 1, "dropped": 1, "foreign": [0.01], "ratios": [1.0], "cpu_ratio": 1.0}
    common |= {"cpu_s_per_sample": 0.004, "samples_per_s": 250.0, "disturbed": 0}
    common |= {"communication": [], "waiting": [], "other_cpu": 0.0123}
    even = {"ratio": 1.0, "ratio_min": 1.0, "ratio_max": 1.0}
    rows: list[dict[str, Any]] = [
        common
        | even
        | {"row": "bp", "processes": 1, "choices": {}, "peak_mib": [311.2], "parameters": [9]},
        common
        | even
        | {"row": "ddp", "processes": 2, "choices": {"bucket_mib": 25}, "of_limit": 0.951}
        | {"peak_mib": [180.1, 180.4], "parameters": [9, 9]},
        common
        | {"row": "zbv microbatches=4", "processes": 2, "peak_mib": [150.0, 90.6]}
        | {"ratio": 1.6, "ratio_min": 1.5, "ratio_max": 1.7, "parameters": [4, 5]}
        | {"choices": {"microbatches": 4, "cuts": ["a", "b", "c"]}, "disturbed": 2}
        | {"communication": [0.01, 0.0], "waiting": [0.04, 0.123]},
    ]
    return Record.begin("speed", "python -m benchmarks speed", settings, threads=1).with_rows(
        rows
    )


def link_record() -> Record:
    settings = {
        "network": "mlp",
        "parameters": 18_903_050,
        "batch": 128,
        "repetitions": 5,
        "threads": 1,
        "mbit_s": [1000.0, 100.0],
    }
    rows = [
        {"row": row, "mbit_s": rate, "processes": processes, "threads": 1, "choices": choices}
        | {"ms_per_sample": ms, "ms_min": 0.9 * ms, "ms_max": 1.1 * ms, "sent_mib": sent}
        for rate, slow in ((1000.0, 1), (100.0, 10))
        for row, processes, choices, ms, sent in (
            ("bp", 1, {}, 2.0, [0.0]),
            ("ddp", 2, {"bucket_mib": 25}, 6.0 * slow, [72.0, 75.0]),
            ("fdg extra_delay=1", 2, {"cuts": ["hidden2"], "delay": 4}, 1.0, [1.0, 1.1]),
        )
    ]
    return Record.begin("link", "python -m benchmarks link", settings, threads=1).with_rows(
        rows
    )


RECORDS = pytest.mark.parametrize("record", [overhead_record(), speed_record(), link_record()])


@RECORDS
def test_a_table_has_every_row_and_where_it_comes_from(record: Record) -> None:
    shown = record_table(record)
    for label in {row["row"] for row in record.rows}:
        assert f"\n| {label} |" in shown
    columns = {line.count("|") for line in shown.splitlines() if line.startswith("|")}
    assert len(columns) == 1
    assert shown.endswith(provenance(record))


@RECORDS
def test_the_provenance_has_everything_one_would_ask(record: Record) -> None:
    line = provenance(record)
    wanted = [f"`{record.command}`", record.date[:10], record.source, record.machine["cpu"]]
    wanted += [*record.versions.values(), "threads: 1", "allocator"]
    assert [word for word in wanted if word not in line] == []
    with_gpu = dataclasses.replace(record, machine=record.machine | {"gpu": "NVIDIA H200"})
    assert "NVIDIA H200, " in provenance(with_gpu)


def test_goals_are_judged() -> None:
    shown = record_table(overhead_record())
    assert "| fdg | stash | 1.050 | 1.010 to 1.090 | 1.10 met | 4.200 | 4.000 | 300 |" in shown
    assert "| 1.45 missed |" in shown
    assert "| dgl | - | 1.200 | 1.100 to 1.300 | - | 4.800 | 4.000 | - |" in shown
    assert "| 25.0% |" in shown


def test_short_steps_have_a_table_of_their_own() -> None:
    times = {"engine_ms": 3.0, "plain_ms": 2.0, "by_hand_ms": 2.5, "by_hand_ratio": 1.25}
    above = {"above_ms": 0.25, "above_min_ms": 0.2, "above_max_ms": 0.3, "goal_above_ms": 0.35}
    row = {"row": "fdg on 2", "short_steps": True, "ratio": 1.6, "ratio_min": 1.4}
    row |= {"ratio_max": 1.7, "goal": 1.5, **times, **above}
    record = overhead_record()
    assert "Short steps" not in record_table(record)
    record = record.with_rows([*record.rows, row])
    line = "| fdg on 2 | 1.60 | 1.40 to 1.70 | 1.50 missed | 1.25 | 3.00 | 2.00 | 2.50 | 0.25 |"
    assert f"{line} 0.20 to 0.30 | 0.35 met |" in record_table(record)


def test_remedies_have_a_table_of_their_own() -> None:
    record = overhead_record()
    assert "without" not in record_table(record)
    base = {"base": "fdg", "base_ratio": 1.04, "base_ratio_min": 1.0, "base_ratio_max": 1.06}
    row = record.rows[0] | base | {"row": "fdg+t1", "base_goal": 1.03, "base_sample_s": 0.0041}
    shown = record_table(record.with_rows([*record.rows, row]))
    line = "| fdg+t1 | fdg | 1.040 | 1.000 to 1.060 | 1.03 missed | 4.200 | 4.100 |"
    assert line in shown


def test_equal_processes_are_reported_once() -> None:
    shown = record_table(speed_record())
    assert "| 1.00 to 1.00 | - | 1.00 | 1.2% | - | - | 311 | - | 0 |" in shown
    assert "| 0.95 | 1.00 | 1.2% | - | - | 180 | bucket_mib=25 | 0 |" in shown
    assert "| 1.00 | 1.2% | 1%, 0% | 4%, 12% | 150, 91 | cut at a, b, c | 2 |" in shown
    assert "more than 4% of the machine" in shown


def test_every_rate_of_a_link_has_a_column() -> None:
    shown = record_table(link_record())
    assert "| row | nodes | 1000 Mbit/s | 100 Mbit/s | sent, MiB/step | choices |" in shown
    assert (
        "| ddp | 2 | 6.00 (5.40 to 6.60) | 60.00 (54.00 to 66.00) | 75.0 | bucket_mib=25 |"
    ) in shown
    assert "| 1.1 | cut at hidden2, delay 4 |" in shown
    assert "mlp with 18,903,050 parameters on batches of 128" in shown


def test_code_that_changed_in_between_is_reported() -> None:
    record = speed_record()
    mixed = record.with_rows([*record.rows, record.rows[0] | {"source": "0123456789ab"}])
    assert f"(source {record.source}, 0123456789ab)" in provenance(mixed)


@RECORDS
def test_a_folder_is_rendered_the_same_every_time(record: Record, tmp_path: Path) -> None:
    record.write(tmp_path)
    render(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {"record.json", "README.md", f"{record.name}.svg"}
    assert record_table(record) in files["README.md"].decode()
    assert b"<svg" in files[f"{record.name}.svg"]
    render(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_an_excerpt_is_stale_until_it_is_rendered(tmp_path: Path) -> None:
    folder, document = tmp_path / "records" / "speed", tmp_path / "page.md"
    overhead_record().write(folder)
    document.write_text("above\n<!-- record: speed -->\nold\n<!-- end -->\nbelow\n")
    assert stale_excerpts(document, tmp_path / "records") == ["speed"]
    render(folder, into=document)
    assert stale_excerpts(document, tmp_path / "records") == []
    text = document.read_text()
    assert text.startswith("above\n<!-- record: speed -->\n| method |")
    assert text.endswith("\n<!-- end -->\nbelow\n")


def test_a_marker_with_rows_quotes_these_rows_in_short(tmp_path: Path) -> None:
    folder, document = tmp_path / "records" / "speed", tmp_path / "page.md"
    speed_record().write(folder)
    marker = "speed rows=zbv microbatches=4,bp"
    document.write_text(f"<!-- record: {marker} -->\nold\n<!-- end -->\n")
    assert stale_excerpts(document, tmp_path / "records") == [marker]
    render(folder, into=document)
    assert stale_excerpts(document, tmp_path / "records") == []
    shown = excerpt(marker, tmp_path / "records").splitlines()
    assert shown[2:4] == [
        "| zbv microbatches=4 | 250.0 | 1.60 times | 1.50 to 1.70 | 150, 91 |",
        "| bp | 250.0 | 1.00 times | 1.00 to 1.00 | 311 |",
    ]


def test_rows_that_do_not_exist_or_have_no_short_table_are_refused(tmp_path: Path) -> None:
    speed_record().write(tmp_path / "speed")
    overhead_record().write(tmp_path / "overhead")
    with pytest.raises(DataError, match="unknown row 'fdg'"):
        excerpt("speed rows=bp,fdg", tmp_path)
    with pytest.raises(DataError, match="no short table for a record 'overhead'"):
        excerpt("overhead rows=fdg", tmp_path)


def test_only_the_place_that_was_named_changes(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    places = [f"<!-- record: {name} -->\n{name}\n<!-- end -->\n" for name in ("a", "b")]
    document.write_text("".join(places))
    insert_excerpt(document, "b", r"new \1 text")
    assert document.read_text() == places[0] + places[1].replace("\nb\n", "\nnew \\1 text\n")


def test_a_document_without_a_place_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("nothing here\n")
    with pytest.raises(DataError, match="write the two lines"):
        insert_excerpt(document, "speed", "table")
    assert stale_excerpts(document, tmp_path) == []


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match="known are overhead, speed"):
        record_table(Record.begin("weather", "hocket", {}, threads=1))


def test_the_record_of_a_study_is_rendered_and_quoted(tmp_path: Path, monkeypatch) -> None:
    run_here(monkeypatch)
    base = {
        "network": "mlp:hidden=[4]",
        "data": "synthetic:shape=[8],classes=3,examples=32,test_examples=16",
        "epochs": 1,
        "batch_size": 8,
    }
    folder, document = tmp_path / "records" / "mine", tmp_path / "page.md"
    hocket_lab.sweep(
        hocket_lab.Study(name="mine", base=base, grid={"method": "bp"}), folder, progress=False
    )
    files = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    document.write_text("<!-- record: mine -->\nold\n<!-- end -->\n")
    for name in ("README.md", "curves.svg"):
        (folder / name).unlink()
    render(folder, into=document)
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == files
    assert stale_excerpts(document, tmp_path / "records") == []
    assert document.read_text().startswith("<!-- record: mine -->\n| row | test_loss |")
    assert " by `hocket_lab.sweep(study)` " in document.read_text()
    assert "Its runs were made at commit " in document.read_text()
    short = excerpt("mine rows=short", tmp_path / "records").splitlines()
    assert short[0] == "| method | stages | updates late | test_loss |"
    loss = Record.read(folder).rows[0]["final"]["test_loss"]["mean"]
    assert short[2] == f"| bp | 2 | 0 | {loss:.3f} |"
    assert ",examples=32,test_examples=16: one seed, 0. Updates late: " in short[4]
    assert excerpt("mine rows=1", tmp_path / "records").splitlines() == short
    with pytest.raises(DataError, match=r"no rows '0,x'.*numbers from 1 to 1"):
        excerpt("mine rows=0,x", tmp_path / "records")


def test_a_quoted_study_names_the_processors_of_its_results(
    tmp_path: Path, monkeypatch
) -> None:
    """Runs that only compare rates are of no row's results."""
    run_here(monkeypatch)
    pretend_runs(monkeypatch, lambda config: 1.0)
    study = hocket_lab.Study(
        name="mine",
        grid={"method": "bp"},
        learning_rates=[0.1, 0.2],
        seeds=[0, 1],
        seeds_for_sweep=[0],
        hold_out_for_sweep=0.25,
    )
    folder = tmp_path / "mine"
    hocket_lab.sweep(study, folder, progress=False)
    values = json.loads((folder / "record.json").read_text())
    for run, cpu in zip(
        values["rows"][0]["runs"], ["one", "two", "three", "four"], strict=True
    ):
        run["source"]["cpu"] = cpu
    (folder / "record.json").write_text(json.dumps(values))
    short = excerpt("mine rows=short", tmp_path)
    assert "best learning rate of those tried, by 0.25 of the training examples" in short
    assert short.endswith(", trained on four and three.")


def test_short_rows_that_differ_in_other_options_have_their_whole_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    grid = {
        "method": "bp",
        "network": "mlp:hidden=[4]",
        "data": "synthetic:shape=[8],classes=3,examples=32,test_examples=16",
        "optimizer": ["SGD:lr=0.1", "Adam:lr=0.1"],
    }
    study = hocket_lab.Study(
        name="two", base={"epochs": 1}, grid=grid, learning_rates=[0.1], seeds=[0, 1]
    )
    hocket_lab.sweep(study, tmp_path / "two", progress=False)
    lines = excerpt("two rows=short", tmp_path).splitlines()
    conditions = "mean and standard deviation over the seeds 0, 1, at the learning rate 0.1. U"
    assert conditions in lines[-1]
    labels = [line.split(" | ")[0] for line in lines[2:4]]
    assert labels == ["| optimizer SGD", "| optimizer Adam"]
