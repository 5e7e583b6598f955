import dataclasses
import json
from pathlib import Path

import pytest

import hocket_lab
from benchmarks.harness.record import Record
from benchmarks.report.goals import goals_table
from benchmarks.report.markdown import table
from benchmarks.report.render import (
    excerpt,
    insert_excerpt,
    provenance,
    record_table,
    render,
    stale_excerpts,
)
from hocket.errors import DataError
from unit.lab.studies.in_process import TINY, pretend_runs, run_here

KEPT = Path(__file__).parents[3] / "records"


def kept(name):
    """Return a record of the repository; the architecture tests compare its whole table."""
    return Record.read(KEPT / name)


RECORDS = pytest.mark.parametrize("name", ["overhead", "speed", "link"])


@RECORDS
def test_the_provenance_has_everything_one_would_ask(name):
    record = kept(name)
    line = provenance(record)
    wanted = [f"`{record.command}`", record.date[:10], record.source, record.machine["cpu"]]
    wanted += [*record.versions.values(), "threads: 1", "allocator"]
    assert [word for word in wanted if word not in line] == []
    with_gpu = dataclasses.replace(record, machine=record.machine | {"gpu": "NVIDIA H200"})
    assert "NVIDIA H200, " in provenance(with_gpu)
    # Code that has changed in between is told.
    mixed = record.with_rows([*record.rows, record.rows[0] | {"source": "0123456789ab"}])
    assert f"(source {record.source}, 0123456789ab)" in provenance(mixed)


def test_goals_are_judged_and_a_cell_without_its_value_is_a_dash():
    rows = [{"row": "a", "s": 0.25}, {"row": "b", "s": None}, {"row": "c"}]
    shown = table(rows, ("row", "{row}"), ("s", "{s:.2f}"), ("row", lambda row: row["row"]))
    assert shown.splitlines()[2:] == ["| a | 0.25 | a |", "| b | - | b |", "| c | - | c |"]
    record = kept("overhead")
    (row,) = (row for row in record.rows if row["row"] == "fr")
    for ratio, judged in ((1.449, "1.45 met"), (1.451, "1.45 missed")):
        shown = record_table(record.with_rows([row | {"ratio": ratio}]))
        assert f"| fr | recompute | {ratio:.3f} |" in shown
        assert f"| {judged} |" in shown


@RECORDS
def test_a_folder_is_rendered_the_same_every_time(name, tmp_path):
    record = kept(name)
    record.write(tmp_path)
    render(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {"record.json", "README.md", f"{record.name}.svg"}
    assert b"<svg" in files[f"{record.name}.svg"]
    render(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("marker", ["speed", "speed rows=fdg,bp"])
def test_an_excerpt_is_stale_until_it_is_rendered_and_may_quote_some_rows(tmp_path, marker):
    folder, document = tmp_path / "records" / "speed", tmp_path / "page.md"
    kept("overhead" if marker == "speed" else "speed").write(folder)
    head, tail = f"above\n<!-- record: {marker} -->\n", "\n<!-- end -->\nbelow\n"
    document.write_text(f"{head}old{tail}")
    assert stale_excerpts(document, tmp_path / "records") == [marker]
    render(folder, into=document)
    assert stale_excerpts(document, tmp_path / "records") == []
    text = document.read_text()
    assert text.startswith(f"{head}| method |" if marker == "speed" else head)
    assert text.endswith(tail)
    if marker != "speed":
        shown = excerpt(marker, tmp_path / "records").splitlines()
        assert [line.split(" | ")[0] for line in shown[2:4]] == ["| fdg", "| bp"]
        assert " | 1.00 times | 1.00 to 1.00 | " in shown[3]
        assert 'compared with fdg:speeds="1,1"' in excerpt("unequal rows=bp", KEPT)


def test_only_the_place_that_was_named_changes(tmp_path):
    document = tmp_path / "page.md"
    places = [f"<!-- record: {name} -->\n{name}\n<!-- end -->\n" for name in ("a", "b")]
    document.write_text("".join(places))
    insert_excerpt(document, "b", r"new \1 text")
    assert document.read_text() == places[0] + places[1].replace("\nb\n", "\nnew \\1 text\n")
    with pytest.raises(DataError, match="write the two lines"):
        insert_excerpt(document, "speed", "table")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: excerpt("speed rows=bp,fgd", KEPT), "unknown row 'fgd'"),
        (lambda: excerpt("overhead rows=fdg", KEPT), "no short table for a record 'overhead'"),
        (
            lambda: record_table(dataclasses.replace(kept("overhead"), name="weather")),
            "known are overhead, speed",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused(act, said):
    with pytest.raises(DataError, match=said):
        act()


def test_the_record_of_a_study_is_rendered_and_quoted(tmp_path, monkeypatch):
    run_here(monkeypatch)
    folder, document = tmp_path / "records" / "mine", tmp_path / "page.md"
    hocket_lab.sweep(
        hocket_lab.Study(name="mine", base=TINY, grid={"method": "bp"}), folder, progress=False
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
    short = excerpt("mine rows=1", tmp_path / "records").splitlines()
    assert short[0] == "| method | stages | staleness | test_loss |"
    loss = Record.read(folder).rows[0]["final"]["test_loss"]["mean"]
    assert short[2] == f"| bp | 2 | 0 | {loss:.3f} |"
    assert ",examples=32,test_examples=16: one seed, 0. Staleness: " in short[4]
    with pytest.raises(DataError, match=r"no rows '0,x'.*numbers from 1 to 1"):
        excerpt("mine rows=0,x", tmp_path / "records")


def test_a_quoted_study_names_the_processors_of_its_results(tmp_path, monkeypatch):
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
    short = excerpt("mine rows=1", tmp_path)
    assert "best learning rate of those tried, by 0.25 of the training examples" in short
    assert short.endswith(", trained on four and three.")


def test_short_rows_that_differ_in_other_options_have_their_whole_labels(tmp_path, monkeypatch):
    run_here(monkeypatch)
    grid = TINY | {"method": "bp", "optimizer": ["SGD:lr=0.1", "Adam:lr=0.1"]}
    study = hocket_lab.Study(name="two", grid=grid, learning_rates=[0.1], seeds=[0, 1])
    hocket_lab.sweep(study, tmp_path / "two", progress=False)
    lines = excerpt("two rows=1,2", tmp_path).splitlines()
    conditions = "mean and standard deviation over the seeds 0, 1, at the learning rate 0.1."
    assert conditions in lines[-1]
    labels = [line.split(" | ")[0] for line in lines[2:4]]
    assert labels == ["| optimizer SGD", "| optimizer Adam"]


def row(name, ratio, cpu_ratio=1.0, **more):
    return {"row": name, "ratio": ratio, "cpu_ratio": cpu_ratio} | more


def said(*rows):
    found = goals_table([row("bp", 1.0), row("independent", 1.8), *rows])
    assert found is not None
    _, _, *lines = found.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {what: (value, met) for what, _, value, met in cells}


def test_each_goal_is_met_or_missed():
    peers = row("ddp", 1.8), row("gpipe microbatches=4", 1.2), row("zbv microbatches=2", 1.5)
    found = said(row("fdg", 1.71, cpu_ratio=1.06, of_limit=0.97), *peers)
    assert found == {
        "fdg compared with bp": ("1.710", "missed"),
        "fdg compared with the limit": ("0.970", "met"),
        "fdg compared with the best pipeline here, zbv microbatches=2": ("1.140", "missed"),
        "fdg compared with ddp": ("0.950", "missed"),
        "processor time of fdg": ("1.060", "missed"),
    }
    found = said(row("fdg", 1.92, cpu_ratio=1.04), *peers)
    assert {met for _, met in found.values()} == {"met"}


def test_others_are_held_against_fdg_but_not_without_it_or_where_a_process_is_slow():
    found = said(row("fdg", 1.8), row("adl accumulate=4", 1.7), row("dgl", 1.72))
    assert found["adl accumulate=4 compared with fdg"] == ("0.944", "missed")
    assert found["dgl compared with fdg"] == ("0.956", "met")
    assert goals_table([row("bp", 1.0), row("independent", 1.8), row("ddp", 1.8)]) is None
    without_limit = [row("bp", 1.0), row("fdg", 1.7), row("fdg checksum=false", 1.7)]
    assert goals_table(without_limit) is None
    record = kept("speed")
    slowed = dataclasses.replace(record, settings=record.settings | {"slow": 0.5})
    assert ["| goal |" in record_table(one) for one in (record, slowed)] == [True, False]
