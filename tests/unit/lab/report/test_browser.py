"""The report in a real browser: charts, sorting and zooming work, and nothing complains."""

import pytest

from hocket_lab.report.find_runs import find_runs
from hocket_lab.report.page import write_report
from unit.lab.report.browser import CHROMIUM, Browser
from unit.lab.report.made_runs import make_run, make_study, record_timeline

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a few runs with curves, a program and a timeline."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(folder / "bp", method="bp", error=0.6),
        record_timeline(make_run(folder / "fdg-0", error=0.9, record_timeline=True)),
        make_run(folder / "fdg-1", error=0.8, seed=1),
        make_run(folder / "ddg", method="ddg", epochs=2, error=0.35, state=None),
    ]
    write_report(find_runs(runs), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, report):
    """The browser with the report, which must not complain, nor ask for anything else."""
    browser.open(report)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [report.as_uri()]


def first_cells(page, table):
    rows = f"document.querySelectorAll('table.sortable')[{table}].tBodies[0].rows"
    return page.run(f"[...{rows}].map(row => row.cells[0].textContent)")


def window(page, number):
    box = f"document.querySelectorAll('.boxes')[{number}].viewBox.baseVal"
    return page.run(f"[{box}.x, {box}.width]")


def test_every_chart_has_lines_inside_its_axes(page):
    inside = page.run("""[...document.querySelectorAll('.chart')].map(chart => {
        const box = chart.getBoundingClientRect();
        const lines = [...chart.querySelectorAll('.mean')].map(l => l.getBoundingClientRect());
        return lines.length && lines.every(l => l.left >= box.left && l.right <= box.right
            && l.top >= box.top && l.bottom <= box.bottom);
    })""")
    assert len(inside) >= 9
    assert all(inside)


def test_the_head_of_a_column_sorts_in_both_directions(page):
    assert first_cells(page, 0) == ["bp", "fdg", "ddg"]
    page.click("table.sortable thead button", 2)  # test error
    assert first_cells(page, 0) == ["ddg", "bp", "fdg"]
    page.click("table.sortable thead button", 2)
    assert first_cells(page, 0) == ["fdg", "bp", "ddg"]
    page.click("table.sortable thead button", 8)  # peak memory, unknown for the last one
    assert first_cells(page, 0)[-1] == "ddg"
    page.click("table.sortable thead button", 8)
    assert first_cells(page, 0)[-1] == "ddg"


def test_a_timeline_zooms_and_moves(page):
    last = page.run("document.querySelectorAll('.boxes').length") - 1
    page.click("[data-zoom='all']", last)
    start, whole = window(page, last)
    assert start == 0
    for _ in range(2):
        page.click("[data-zoom='in']", last)
    start, width = window(page, last)
    assert width == pytest.approx(whole / 4)
    page.click("[data-zoom='right']", last)
    assert window(page, last)[0] == pytest.approx(start + width / 4)
    labels = page.run(
        f"[...document.querySelectorAll('.labels')[{last}].querySelectorAll('.axis')]"
        ".map(label => label.textContent)"
    )
    assert labels
    assert all(label.endswith(" ms") for label in labels)
    page.click(".view", last)  # which takes the focus
    page.press("0")
    assert window(page, last) == [0, whole]


def test_the_pointer_shows_values_and_the_legend_hides_a_group(page):
    page.run("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    box = "document.querySelector('.chart').getBoundingClientRect()"
    x, y = page.run(f"[{box}.right - 20, {box}.top + {box}.height / 2]")
    page.mouse("mouseMoved", x, y)
    shown = page.run("document.querySelector('figure output').textContent")
    assert "updates 30" in shown
    assert "40  bp" in shown
    assert "65  fdg" in shown  # the mean of 70 and 60
    page.click("[data-toggle='1']")
    hidden = page.run("[...document.querySelectorAll('.chart [data-group=\"1\"]')].map("
                      "group => getComputedStyle(group).display)")  # fmt: skip
    assert set(hidden) == {"none"}


def test_the_pointer_reads_values_from_logarithmic_axes(browser, tmp_path):
    study = make_study(tmp_path, rates=(0.0001, 0.0004, 0.01))
    write_report(find_runs([study]), tmp_path / "study.html")
    browser.open(tmp_path / "study.html")
    chart = "document.querySelector('[data-name=\"learning rate\"]')"
    browser.run(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = f"{chart}.getBoundingClientRect()"
    browser.mouse(
        "mouseMoved", *browser.run(f"[{box}.right - {box}.width / 2, {box}.top + 50]")
    )
    shown = browser.run(f"{chart}.parentNode.querySelector('output').innerText")
    assert shown.split("\n") == ["learning rate 0.0004", "4 bp"]
    assert browser.complaints == []


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_as_wide_as_the_window_and_as_dark_as_its_reader_wants(
    page, report, width, scheme
):
    page.open(report, width=width, scheme=scheme)
    assert page.run("document.documentElement.scrollWidth") == width
    colour = "getComputedStyle(document.body).backgroundColor"
    assert (page.run(colour) == "rgb(255, 255, 255)") == (scheme == "light")
    page.click("#theme")
    assert (page.run(colour) == "rgb(255, 255, 255)") == (scheme == "dark")


def test_it_is_printed_in_light_colours_without_buttons(page, report):
    page.open(report, scheme="dark", media="print")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.buttons')).display") == "none"
