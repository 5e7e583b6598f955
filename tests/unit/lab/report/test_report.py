"""One page of many runs: complete, escaped, equal for equal runs, and frank about the rest."""

import json
import os
import re
from html.parser import HTMLParser
from math import nan
from pathlib import Path
from urllib.parse import unquote

import pytest

from hocket.cli.main import main
from hocket.errors import OptionError, RunFolderError
from hocket.partition.plan import Plan
from hocket.timeline import Span, Timeline
from hocket_lab.report.curves import batch_losses, learning_curves
from hocket_lab.report.find_runs import FoundRuns, find_runs
from hocket_lab.report.groups import UNKNOWN, compare_settings, group_runs
from hocket_lab.report.line_chart import Curve, axis_ticks, line_chart, log_ticks
from hocket_lab.report.markup import VOID
from hocket_lab.report.page import build_fitting_page, build_page, write_report
from hocket_lab.report.summaries import stages_table
from unit.lab.report.made_runs import STAGE, make_run, make_study, record_timeline

STUDY = Path(__file__).parents[4] / "records/gpt-characters-500"
BAD = '<script>alert("1")</script>'


class Page(HTMLParser):
    """Elements and text of a page, whose tags must match."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(text)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(self.texts)


def page_of(*paths):
    return build_page(find_runs(paths))


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_page_has_a_section_for_everything_that_runs_have_left(tmp_path):
    plan = tmp_path / "plan.json"
    times = {"forward_s": 0.01, "backward_s": 0.02, "update_s": 0.0, "packet_s": 0.0}
    forecast = {"method": "fdg", "cuts": ["hidden1"], "extra_delay": [], "tick_s": 0.05,
                "times": [times, times], "staleness": [1, 0]}  # fmt: skip
    Plan(("hidden1",)).write(plan, forecasts=[forecast])
    runs = [
        record_timeline(make_run(tmp_path / "fdg", plan=str(plan), record_timeline=True)),
        make_run(tmp_path / "bp", method="bp"),
    ]
    text = page_of(*runs)
    page = Page(text)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Results", "Settings that differ", "Loss and error", "Stages and batches",
        "Gradient error", "Time and memory of stages", "Plan and outcome", "Programs",
        "Timelines", "Runs", "Settings that are equal",
    ]  # fmt: skip
    charts = [a["data-name"] for a in page.named("svg") if a.get("class") == "chart"]
    assert charts.count("updates") == charts.count("samples") == 3
    assert charts.count("seconds of training") == 3
    assert charts.count("stage") == 3
    assert "stage 0: computation of a batch, ms" in page.text
    assert {a["class"] for a in page.named("rect")} >= {"F", "B", "U", "busy", "send", "wait"}
    # 640 samples in batches of 64 take 1.5 s, and a batch was to take 50 ms.
    assert re.search(r"time of a batch, ms\s+50\s+150\s+3\b", page.text)


def test_each_chart_has_its_numbers_as_csv_and_each_stage_table_its_labels_once(tmp_path):
    runs = [make_run(tmp_path / f"fdg{seed}", seed=seed) for seed in range(2)]
    page = Page(page_of(*runs, make_run(tmp_path / "bp", method="bp")))
    charts = [a for a in page.named("svg") if a.get("class") == "chart"]
    tables = [a for a in page.named("a") if a["download"].endswith(".csv")]
    assert len(tables) == len(charts) > 8
    header, first, *rows = unquote(tables[0]["href"]).split("\r\n")
    assert header == 'data:text/csv,settings,run,updates,"test error, %"'
    assert (first, rows[2], rows[5]) == ("fdg,0,10,50", "fdg,1,10,50", "bp,0,10,50")
    (late,) = (unquote(a["href"]) for a in tables if a["download"].startswith("staleness"))
    assert "fdg,0,1,1\r\n" in late  # as in the table of stages, and not of logged batches
    table = stages_table(group_runs(find_runs(runs).runs))
    assert Page(table).text.count("fdg") == 1
    assert table.count("sample colour0") == 2


def test_skipped_batches_averages_and_processes_are_shown_where_a_run_has_them(tmp_path):
    plain = page_of(make_run(tmp_path / "one", processes=2))
    assert len(re.findall(r"processes</th><td>2</td>", plain)) == 1
    assert "averaged" not in plain
    assert "batches skipped" not in plain
    averaged = {"loss": 0.9, "error": 0.125, "samples": 100, "exits": [], "ensemble": None}
    more = make_run(tmp_path / "two", processes=2, averaged=averaged, skipped=2)
    both = page_of(more, tmp_path / "one")
    assert both.count("averaged weights: test error, %") == 2  # of settings, and of runs
    assert both.count('data-value="12.5"') == 1  # no mean with the run that has none
    assert both.count("batches skipped") == 2  # of settings, and of runs


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(tmp_path):
    page = Page(page_of(make_run(tmp_path / "run")))
    (policy,) = [a["content"] for a in page.named("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert len(page.named("style")) == len(page.named("script")) == 1
    fetching = {"src", "href", "srcset", "data", "action", "xlink:href", "style"}
    links = [a for _, a in page.elements if fetching & a.keys()]
    assert all(a["href"].startswith("data:text/csv,") and "download" in a for a in links)
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert not {tag for tag, _ in page.elements} & {"link", "iframe", "object", "img", "base"}


def test_names_and_messages_of_a_run_folder_are_text_whatever_their_letters(tmp_path):
    folder = make_run(tmp_path / BAD.replace("/", "_"), network="mlp")
    change(folder / "summary.json", message=BAD, state=BAD)
    (folder / "environment.json").write_text(json.dumps({BAD: BAD}))
    text = page_of(folder)
    assert "<script>alert" not in text
    assert BAD in Page(text).text
    folder = make_run(tmp_path / os.fsdecode(b"bad\xff"), state="failed")
    change(folder / "summary.json", message="\ud800")
    write_report(find_runs([folder]), tmp_path / "page.html")
    assert "bad?" in (tmp_path / "page.html").read_text()


def test_equal_runs_give_equal_bytes(tmp_path):
    runs = [make_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    for name in ("1.html", "2.html"):
        write_report(find_runs(runs), tmp_path / name)
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()
    with pytest.raises(OptionError, match=r"cannot write the report to .* with --out"):
        write_report(find_runs(runs), tmp_path / "missing/report.html")


def test_runs_that_differ_in_their_seed_are_one_group_named_by_what_tells_it_apart(tmp_path):
    runs = [
        make_run(tmp_path / "a", seed=0, log_every=5),
        make_run(tmp_path / "b", seed=1, error=0.6),
        make_run(tmp_path / "c", method="fdg:shrink=0.5"),
        make_run(tmp_path / "d", batch_size=32),
    ]
    assert "different data (cifar10, digits)" in page_of(
        runs[0], make_run(tmp_path / "e", data="cifar10")
    )
    assert "different data (digits, digits, 0.1 held out)" in page_of(
        runs[0], make_run(tmp_path / "f", hold_out=0.1)
    )
    groups = group_runs(find_runs(runs).runs)
    labels = [group.label for group in groups]
    assert labels == [
        "fdg, batch size 64", "fdg shrink=0.5, batch size 64", "fdg, batch size 32",
    ]  # fmt: skip
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    settings = compare_settings(groups)
    assert [s.name for s in settings if s.differs] == ["method", "batch_size"]
    assert settings[0].differs
    assert "35.0 ± 7.1" in page_of(*runs)


def test_a_run_that_has_not_ended_or_was_resumed_is_shown_as_far_as_it_is(tmp_path):
    under_way = make_run(tmp_path / "under-way", state=None)
    begun = make_run(tmp_path / "begun", epochs=0, state=None, seed=1)
    resumed = make_run(tmp_path / "resumed", seed=2)
    change(resumed / "summary.json", epochs=[{}])
    found = find_runs([under_way, begun, resumed])
    assert [run.state for run in found.runs] == ["unfinished"] * 3
    assert [len(run.curve) for run in found.runs] == [3, 0, 3]
    assert "metrics have 3 epochs and its summary has 1: it was resumed" in build_page(found)


def test_runs_that_diverged_have_no_mean_and_spoil_no_page(tmp_path):
    """A row of no batch leaves out its run alone."""
    runs = [make_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    metrics = runs[0] / "metrics.jsonl"
    rows = metrics.read_text().replace('"loss": 1.0, "error"', '"loss": null, "error"')
    metrics.write_text(rows)
    assert find_runs(runs).runs[0].last.test_loss == float("inf")
    row = re.search(r"fdg</span>.*", page_of(*runs).replace("</tr>", "\n"))[0]
    assert row.count(UNKNOWN) == 1
    stopped = make_run(tmp_path / "c", state="diverged", seed=2)
    row = re.search(r"fdg</span>.*", page_of(runs[1], stopped).replace("</tr>", "\n"))[0]
    assert row.count(UNKNOWN) == 4  # no result of an epoch has a mean
    for batch in ("NaN", "Infinity", "1e400", "1" + "0" * 400):
        no_batch = f'{{"kind": "backward", "stage": 1, "batch": {batch}, "loss": 1.0}}\n'
        metrics.write_text(rows + no_batch)
        found = find_runs(runs)
        assert [run.name for run in found.runs] == ["b"]
        assert re.search("cannot read .*(row of the batch|too large)", found.left_out[0])


def test_the_mean_of_runs_is_that_of_the_same_batches(tmp_path):
    often, seldom = (make_run(tmp_path / name, seed=n) for n, name in enumerate("ab"))
    kept = [
        line
        for line in (seldom / "metrics.jsonl").read_text().splitlines(keepends=True)
        if (row := json.loads(line))["kind"] == "epoch" or row["batch"] % 10 == 0
    ]
    (seldom / "metrics.jsonl").write_text("".join(kept))
    group = group_runs(find_runs([often, seldom]).runs)
    (chart,) = batch_losses(group)
    pairs = re.findall(r'points="(.*?)" class="(.*?)"', chart)
    lines = {class_: points for points, class_ in pairs}
    # The last run is the one with fewer points, on the line.
    assert lines["mean"] == lines["run"]


def test_losses_of_batches_are_those_of_the_last_stage_however_many_there_were(tmp_path):
    folder = make_run(tmp_path / "run", method="dgl", stages=3, epochs=1)
    stages = [(0, 1, False), (0, 2, True), (1, 1, True)]  # resumed in two stages, or in three
    rows = [
        {"kind": "backward", "batch": batch, "stage": stage, "loss": 1.0 + stage, "last": last}
        for batch, stage, last in stages
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert find_runs([folder]).runs[0].metrics.loss == [(0, 3.0), (1, 2.0)]


def test_a_timeline_of_no_batch_too_long_or_a_device_is_not_shown(tmp_path, monkeypatch):
    empty = record_timeline(make_run(tmp_path / "a", record_timeline=True), batches=0)
    assert "has no batches, or none that took time" in page_of(empty)
    Timeline((Span(0, "F", 0, 0, 1.0, 1.0),)).write(empty / "timeline.json")
    assert "has no batches, or none that took time" in page_of(empty)
    device = make_run(tmp_path / "b", record_timeline=True)
    (device / "timeline.json").symlink_to("/dev/zero")
    assert "there is no timeline" in page_of(device)
    run = record_timeline(make_run(tmp_path / "run", record_timeline=True))
    monkeypatch.setattr("hocket_lab.report.span_picture.MOST_SPANS", 80)
    assert "These are the first 20 of 40 batches" in page_of(run)
    monkeypatch.setattr("hocket_lab.report.programs.JSON_LIMIT", 10)
    assert "bytes, and at most 10 are read" in page_of(run)


@pytest.mark.parametrize("epochs", [0, 2])
def test_evaluations_of_the_epoch_under_way_are_shown(tmp_path, epochs):
    run = make_run(tmp_path / "run", epochs=epochs, state=None)
    rows = [
        {"kind": "evaluation", "tick": updates, "updates": updates, "loss": 1.0, "error": 0.25}
        for updates in (10 * epochs + 4, 10 * epochs + 8)
    ]
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.writelines(json.dumps(row) + "\n" for row in rows)
    found = find_runs([run])
    last = found.runs[0].last
    assert (last.batches, last.updates) == (10 * epochs + 8,) * 2
    assert (last.samples, last.test_error) == (64 * last.batches, 0.25)
    assert last.seconds == pytest.approx(0.15 * last.updates if epochs else nan, nan_ok=True)
    assert '<td class="number" data-value="25.0">25' in build_page(found)


def test_a_study_is_shown_from_its_record_alone(tmp_path):
    found = find_runs([STUDY])
    groups = group_runs(found.runs)
    record = json.loads((STUDY / "record.json").read_text())
    assert len(groups) == len(record["rows"])
    by_rate = {(row["row"], row["learning_rate"]) for row in record["rows"]}
    assert len(by_rate) == len(groups)
    assert "64.09" in build_page(FoundRuns(groups[0].runs, ()))
    record["rows"][0]["row"] = "fdg, data dir one, two, batch size 8"
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert find_runs([tmp_path]).runs[0].config.data_dir == Path("one, two")


def test_a_study_is_shown_from_the_folders_of_its_runs_at_the_best_rates(tmp_path):
    make_run(tmp_path / "runs/a", optimizer="SGD:lr=0.1")
    run = {"learning_rate": 0.1, "seed": 0, "folder": "runs/a", "state": "finished"}
    other = {**run, "learning_rate": 0.2, "folder": "runs/b"}
    gone = {**run, "folder": "runs/c", "curve": [], "message": ""}
    failed = {**gone, "message": "it has\n1 layer"}
    old = {**run, "folder": "runs/d", "curve": [{}]}
    rows = [
        {"row": "fdg", "learning_rate": 0.1, "runs": [run, other, gone, failed], "sweep": []},
        {"row": "old", "learning_rate": 0.1, "runs": [old], "options": {"metod": "bp"}},
        {"row": "bp", "learning_rate": None, "runs": [], "sweep": [{"learning_rate": 0.1}]},
    ]
    settings = {"name": "few", "select": "test_loss"}
    (tmp_path / "record.json").write_text(json.dumps({"settings": settings, "rows": rows}))
    found = find_runs([tmp_path])
    assert [run.name for run in found.runs] == ["a"]
    reasons = [
        "runs/c': it has not been evaluated yet",
        "runs/c': it has 1 layer",
        "the run 'd' of .* is not one of this version: .* 'metod'",
        "row 'bp' .* has no best learning rate yet",
    ]
    for wanted, reason in zip(reasons, found.left_out, strict=True):
        assert re.search(wanted, reason), reason


def test_a_folder_of_runs_stands_for_them_and_each_run_is_shown_once(tmp_path):
    make_run(tmp_path / "runs/b")
    make_run(tmp_path / "runs/a", seed=1)
    make_run(tmp_path / "others/a", seed=2)
    found = find_runs([tmp_path / "runs", tmp_path / "runs/b", tmp_path / "others/a"])
    assert [run.name for run in found.runs] == [
        str(tmp_path / "runs/a"), "b", str(tmp_path / "others/a"),
    ]  # fmt: skip


def test_of_long_runs_every_nth_evaluation_is_drawn_and_no_share_of_a_time_without_training(
    tmp_path, monkeypatch
):
    folder = make_run(tmp_path / "run", epochs=9, error=0.9)
    nothing = dict.fromkeys(("busy", "communication", "waiting"))
    change(folder / "summary.json", stages=[STAGE | nothing] * 2)
    (bar,) = {a["viewbox"] for a in Page(page_of(folder)).named("svg") if a["class"] == "bar"}
    assert bar == "0 0 100 10"
    monkeypatch.setattr("hocket_lab.report.curves.MOST_EVALUATIONS", 4)
    groups = group_runs(find_runs([folder]).runs)
    points = re.search(r'points="([^"]+)" class="mean"', learning_curves(groups)[0])
    assert len(points[1].split()) == 3  # epochs 3, 6 and 9


DAMAGED = {
    "no JSON": ("run.json", "{", r"cannot read the run in .*broken' .*not JSON"),
    "wrong key": ("run.json", '{"metod": 1}', r"cannot read the run in .*metod"),
    "no object": ("summary.json", "[]", r"summary.json. holds no object"),
    "wrong summary": ("summary.json", '{"stages": 3}', r"cannot read the run in"),
    "wrong row": ("metrics.jsonl", '{"kind": "epoch"}\n', r"cannot read the run in .*number"),
    "environment": ("environment.json", "{", r"cannot read the run in"),
    "deep row": ("metrics.jsonl", '{"kind": "epoch", "x": ' + "[" * 99999 + "\n", "recursion"),
    "far stage": (
        "metrics.jsonl",
        '{"kind": "backward", "batch": 1, "stage": 1024}\n',
        "1025 stages",
    ),
    "long summary": ("summary.json", json.dumps({"stages": [{}] * 1025}), r"1025 stages"),
}


@pytest.mark.parametrize(("file", "content", "reason"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_folder_is_left_out_with_a_reason(file, content, reason, tmp_path):
    run, broken = make_run(tmp_path / "run"), make_run(tmp_path / "broken")
    (broken / file).write_text(content)
    found = find_runs([broken, run])
    assert [each.name for each in found.runs] == ["run"]
    assert [bool(re.search(reason, text)) for text in found.left_out] == [True]
    assert "Left out: " in build_page(found)


@pytest.mark.parametrize(
    ("loss", "seeds"), [('"low"', [0]), ("1e308", [0, 1])], ids=["text", "too large together"]
)
def test_a_run_that_no_page_can_be_built_of_is_left_out_with_a_reason(tmp_path, loss, seeds):
    runs = [make_run(tmp_path / f"run{seed}", seed=seed + 2) for seed in range(3)]
    for seed in seeds:
        strange = make_run(tmp_path / f"strange{seed}", seed=seed)
        rows = (strange / "metrics.jsonl").read_text()
        (strange / "metrics.jsonl").write_text(rows.replace('"loss": 1.0', f'"loss": {loss}'))
        runs.insert(1, strange)
    page, shown = build_fitting_page(find_runs(runs))
    assert {f"run{n}" for n in range(3)} <= {run.name for run in shown.runs}
    assert "strange" in shown.left_out[0]
    assert "Error" in shown.left_out[0]
    assert "Left out: cannot show the run in" in page
    if len(seeds) == 1:
        with pytest.raises(RunFolderError, match=r"cannot show the run in .*strange0"):
            build_fitting_page(find_runs([strange]))


def test_without_any_run_the_reasons_are_the_error(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    paths = [tmp_path / name for name in ("file", "empty", f"missing{10**300}")]
    reasons = r"file' is a file.*empty' is no run folder, .*missing\d+' does not exist"
    for given, said in ((paths, reasons), ([], "none was named")):
        with pytest.raises(RunFolderError, match=said):
            find_runs(given)
    (tmp_path / "empty/record.json").write_text('{"rows": [{}]}')
    with pytest.raises(RunFolderError, match="is none of `hocket sweep`"):
        find_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"record_timeline": True}, "there is no timeline"),
        ({"plan": "gone.json"}, "cannot read the plan"),
        ({"plan": "plan.json"}, "has the cuts layer2, and the run has hidden1"),
        ({"plan": "same.json"}, "has no forecast of"),
        ({"method": "dgl-async"}, "No program: its stages run freely"),
        ({"staleness": "0,5"}, "No program: staleness is [0, 5]"),
        ({"stages": 65}, "No program: 65 stages are more than 64 to draw"),
    ],
    ids=["no timeline", "no plan", "other plan", "no forecast", "free", "staleness", "stages"],
)
def test_what_a_page_cannot_show_of_a_run_is_told(options, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Plan(("layer2",)).write(tmp_path / "plan.json")
    Plan(("hidden1",)).write(tmp_path / "same.json")
    assert reason in Page(page_of(make_run(tmp_path / "run", **options))).text


def test_the_command_warns_of_what_it_leaves_out(tmp_path, capsys):
    run, out = make_run(tmp_path / "run"), tmp_path / "report.html"
    assert main(["report", str(run), str(tmp_path / "gone"), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "warning: left out: " in said
    assert f"the report of 1 run, without the 1 left out, is in {out}" in said
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(tmp_path / "gone"), "--out", str(out)]) == 2


def test_a_chart_shows_no_value_that_is_none():
    nothing = Curve(0, "a", [{}, {0: (0, float("nan"))}])
    assert line_chart("loss", "batch", [nothing]) is None
    one = Curve(1, "b", [{0: (0.0, 1.0), 1: (1.0, float("inf")), 2: (2.0, 3.0)}])
    assert line_chart("loss", "batch", [nothing, one]).count("<polyline") == 1


# The learning rates of a study: all its runs, and the means that its choice compared.


def rate_chart(page):
    return next(each for each in page.split("<figure>") if "learning rate</text>" in each)


def places(class_, chart):
    return re.findall(rf'<circle cx="([^"]*)" cy="([^"]*)" r="3"{class_}>', chart)


def test_a_study_names_the_page_its_diverged_runs_and_rows_without_a_best_rate(tmp_path):
    """The page has its name unless other runs are shown."""
    study = make_study(tmp_path / "study")
    page = page_of(study)
    assert "<title>Hocket: a &lt;study&gt;</title>" in page
    assert "<h1>a &lt;study&gt;<small>1 run, mlp on " in page
    both = page_of(study, make_run(tmp_path / "other", method="bp"))
    assert "<h1>2 runs<small>mlp on " in both
    caption = re.search("<figcaption>.*?</figcaption>", rate_chart(page))[0]
    assert "Without 3 diverged runs" in caption
    assert re.search('class="sample colour2".*?</svg> fdg: no best rate', caption)


def test_all_runs_of_a_sweep_are_points_and_its_means_are_lines(tmp_path):
    chart = rate_chart(page_of(make_study(tmp_path)))
    table = unquote(re.search('href="data:text/csv,(.*?)"', chart)[1]).split("\r\n")
    assert table == [
        "settings,run,learning rate,last test loss",
        "bp,0,0.01,2", "bp,0,0.1,3", "bp,0,1,4", "bp,1,0.01,3", "bp,1,0.1,5", "fdg,0,0.01,6",
        "",
    ]  # fmt: skip
    bp, fdg = re.findall('<g class="colour(.)" data-group="(.)" data-label="(.*?)">', chart)
    assert (bp, fdg) == (("0", "0", "bp"), ("2", "2", "fdg"))
    points = places(' class="run"', chart)
    assert [x for x, _ in points] == ["52", "211", "370", "52", "211", "52"]  # a log axis
    means = places("", chart)
    assert [x for x, _ in means] == ["52", "211"]  # none where a run diverged
    heights = [float(y) for _, y in points]
    assert float(means[0][1]) == pytest.approx((heights[0] + heights[3]) / 2, abs=0.01)


def test_a_study_of_one_rate_has_no_such_chart_and_a_damaged_one_is_refused(tmp_path):
    record = json.loads((make_study(tmp_path) / "record.json").read_text())
    for row in record["rows"]:
        row["sweep"] = row["sweep"][:1]
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert "learning rate</text>" not in page_of(tmp_path)
    record["rows"][0]["sweep"] = [{"learning_rate": n, "mean": 1e999} for n in (0.1, 0.2)]
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert len(find_runs([tmp_path]).studies[0].rows) == 1
    assert places("", rate_chart(page_of(tmp_path))) == []
    record["rows"][0]["sweep"] = [{"learning_rate": "low", "mean": 1.0}] * 2
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match=r"none of `hocket sweep` \(ValueError.*low"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    ("values", "log"),
    [((1, 20), True), ((1, 10), False), ((0, 20), False), ((-1, 20), False)],
    ids=["far apart", "near", "zero", "negative"],
)
def test_positive_values_that_span_more_than_a_factor_of_10_have_a_log_axis(values, log):
    curve = Curve(0, "a", [dict(enumerate(enumerate(map(float, values))))])
    assert (' 204 10 log"' in line_chart("loss", "batch", [curve])) == log
    assert "log" not in line_chart("cosine", "batch", [curve], log="")


LOG = [(0.9, 9.1), (1e-9, 1e9), (1e-300, 1e300), (0.2, 20), (1 - 1e-16, 20), (1, 1.7e308)]
LINEAR = [(0, 0), (-1e-9, 1e-9), (0.1, 0.7), (-5, 1e6), (1e300, 1e301), (2.2, 2.3)]


@pytest.mark.parametrize(
    ("place", "values"),
    [*((log_ticks, values) for values in LOG), *((axis_ticks, values) for values in LINEAR)],
)
def test_ticks_are_few_ascending_and_enclose_the_values(place, values):
    ticks, (first, last) = place(*values)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= (10 if place is log_ticks else 8)
    assert first <= min(values) <= max(values) <= last
