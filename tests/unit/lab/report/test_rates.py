"""The learning rates of a study: all its runs, and the means that its choice compared."""

import json
import re
from urllib.parse import unquote

import pytest

from hocket.errors import RunFolderError
from hocket_lab.report.find_runs import find_runs
from hocket_lab.report.line_chart import Curve, axis_ticks, line_chart, log_ticks
from hocket_lab.report.page import build_page
from unit.lab.report.made_runs import make_run, make_study


def rate_chart(page):
    return next(each for each in page.split("<figure>") if "learning rate</text>" in each)


def places(class_, chart):
    return re.findall(rf'<circle cx="([^"]*)" cy="([^"]*)" r="3"{class_}>', chart)


def test_a_study_names_the_page_its_diverged_runs_and_rows_without_a_best_rate(tmp_path):
    """The page has its name unless other runs are shown."""
    study = make_study(tmp_path / "study")
    page = build_page(find_runs([study]))
    assert "<title>Hocket: a &lt;study&gt;</title>" in page
    assert "<h1>a &lt;study&gt;<small>1 run, mlp on " in page
    both = find_runs([study, make_run(tmp_path / "other", method="bp")])
    assert "<h1>2 runs<small>mlp on " in build_page(both)
    caption = re.search("<figcaption>.*?</figcaption>", rate_chart(page))[0]
    assert "Without 3 diverged runs" in caption
    assert re.search('class="sample colour2".*?</svg> fdg: no best rate', caption)


def test_all_runs_of_a_sweep_are_points_and_its_means_are_lines(tmp_path):
    chart = rate_chart(build_page(find_runs([make_study(tmp_path)])))
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
    assert "learning rate</text>" not in build_page(find_runs([tmp_path]))
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
