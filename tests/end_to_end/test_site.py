"""The site is built without a warning, asks no other server for anything, and fits a phone."""

import re
from pathlib import Path

import pytest
from pictures.programs import TIMES, in_units
from site_player import METHODS, method_of, programs

from end_to_end.namespaces import run_python
from hocket_lab.planner.simulate import tick_s
from unit.lab.report.browser import CHROMIUM, Browser

pytestmark = pytest.mark.xdist_group("site")
ROOT = Path(__file__).parents[2]
# Elements that a browser fetches by itself.
FETCHED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)
PROGRAMS = {
    (name, *map(int, key.split(","))): table
    for name, method in programs().items()
    for key, table in method["programs"].items()
}
# What is wrong with the page at the present width: small letters outside of equations, a page
# that scrolls sideways, a table that does so on a wide screen (records are complete, so theirs
# may), and tables whose first column is not in sight at their right end.
PROBLEMS = """(() => {
    const found = [], shown = e => e.getClientRects().length > 0;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = texts.nextNode());) {
        const parent = node.parentElement;
        if (!node.data.trim() || parent.closest("math, script, style")) continue;
        if (!shown(parent)) continue;
        const size = parseFloat(getComputedStyle(parent).fontSize);
        if (size < 12) found.push(`${size} px: ${node.data.trim().slice(0, 40)}`);
    }
    const wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) found.push(`the page is ${wide} px wide`);
    for (const table of document.querySelectorAll("article table")) {
        const cell = table.querySelector("tbody th, tbody td");
        const box = table.closest(".md-typeset__scrollwrap") || table;
        if (!cell || !shown(cell)) continue;
        const hidden = box.scrollWidth - box.clientWidth;
        const complete = location.pathname.includes("/records/");
        if (innerWidth >= 1280 && hidden > 0 && !complete)
            found.push(`${hidden} px of a table are hidden: ${cell.textContent}`);
        box.scrollLeft = 1e5;
        const { left, right } = cell.getBoundingClientRect();
        if (left < 0 || right > innerWidth || right - left > 0.6 * innerWidth)
            found.push(`first column from ${left} to ${right}: ${cell.textContent}`);
    }
    return found;
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    words = ("-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    run_python(*words, folder=ROOT, NO_MKDOCS_2_WARNING="1")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def front(browser, site):
    """The browser with the front page, for a reader who wants no motion."""
    browser.open(site / "index.html", motion="reduce")
    return browser


def test_the_site_is_built_without_a_warning(site):
    pages = {file.relative_to(site): file.read_text() for file in site.rglob("*.html")}
    assert {Path("index.html"), Path("tutorial.html"), Path("api/training.html")} <= set(pages)
    assert not [url for page in pages.values() for url in FETCHED.findall(page)]
    assert "arithmatex" not in "".join(pages.values()), "every equation is MathML"
    assert "Parameters:" in pages[Path("api/training.html")]


@pytest.mark.parametrize("section", ["Start", "Methods", "Results"])
def test_every_page_of_a_section_has_a_picture(site, section):
    navigation = (ROOT / "mkdocs.yml").read_text()
    (listed,) = re.findall(rf"^  - {section}:\n((?:^   .*\n)+)", navigation, re.MULTILINE)
    pages = re.findall(r"(\S+)\.md$", listed, re.MULTILINE)
    assert len(pages) >= 3
    bare = [page for page in pages if "<img alt=" not in (site / f"{page}.html").read_text()]
    assert bare == []


def test_every_page_fits_wide_and_narrow_light_and_dark(browser, site):
    problems = []
    for file in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
        browser.open(file, width=1280, motion="reduce")
        for width, scheme in ((1280, "default"), (400, "slate")):
            browser.resize(width)
            browser.run(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
            where = f"{file.relative_to(site)} {scheme} {width}"
            problems += [f"{where}: {problem}" for problem in browser.run(PROBLEMS)]
        problems += [f"{file.relative_to(site)}: {event}" for event in browser.complaints]
    assert problems == []


@pytest.mark.parametrize("given", PROGRAMS, ids=str)
def test_the_player_has_the_programs_of_the_engines(given):
    name, stages, accumulate = given
    method, table = method_of(name, accumulate), PROGRAMS[given]
    spans = in_units(method, stages, batches=40)
    until = table["full"] + 2 * table["period"]
    for stage in range(stages):
        done = {
            kind: [start_of(table, kind, stage, n) for n in range(40)] for kind in ("F", "B")
        }
        # The same actions at the same times, and the same updates.
        for kind in done:
            assert done[kind] == [
                s.start_s for s in spans if (s.kind, s.stage) == (kind, stage)
            ]
        updates = [s.batch for s in spans if (s.kind, s.stage) == ("U", stage)]
        assert updates[:8] == [n for n in range(40) if (n + 1) % accumulate == 0][:8]
        # What follows from them when all stages are full.
        steady = [n for n in range(40) if table["full"] <= done["B"][n] < until]
        late = [staleness(table, stage, n, accumulate) for n in steady]
        assert sum(late) / len(late) == method.staleness(stage, stages)
        busy = len(steady) * 3 / (2 * table["period"])
        assert busy == pytest.approx(3 / tick_s(method, [TIMES] * stages), rel=0.01)
        kept = max(
            sum(done["F"][n] < time and done["B"][n] + 2 >= time for n in range(40))
            for time in range(1, until)
        )
        assert kept == method.memory(stage, stages).inputs


def start_of(table, kind, stage, n):
    """The start of an action by the rule of player.js."""
    row, repeats = table[kind][stage], table["repeats"]
    turns = max(0, -(-(n + 1 - len(row)) // repeats))
    return row[n - turns * repeats] + turns * table["period"]


def staleness(table, stage, n, accumulate):
    """The updates between the forward and the backward of a batch by the rule of player.js."""

    def updates(until):
        ends = [start_of(table, "B", stage, i) + 2 for i in range(n + 8)]
        return sum(end <= until for end in ends) // accumulate

    seen = updates(start_of(table, "F", stage, n))
    if held := table.get("versions"):
        turns = max(0, -(-(n + 1 - len(held)) // table["repeats"]))
        seen = held[n - turns * table["repeats"]] + turns * table["repeats"] // accumulate
    return updates(start_of(table, "B", stage, n)) - seen


def choose(page, name, value):
    page.run(
        f"(field => {{ field.value = {str(value)!r};"
        " field.dispatchEvent(new Event('change', {bubbles: true})); })"
        f"(document.querySelector('.player [name={name}]'))"
    )


def counts(page):
    rows = "[...document.querySelectorAll('.counts tbody tr')]"
    return page.run(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))")


def buttons(page):
    return page.run("document.querySelector('.player .controls').textContent")


def told(page):
    return page.run("document.querySelector('.player output').textContent")


def test_the_player_is_driven_by_keys(front):
    front.run("document.querySelector('.player').focus()")
    front.press("Home")
    assert told(front).startswith("Time 0: 0 batches")
    for _ in range(3):
        front.press("ArrowRight")
    front.press("ArrowLeft")
    assert told(front).startswith("Time 2: 0 batches")
    assert counts(front)[0][1] == "forward 2"
    front.press(" ")
    time = "parseInt(document.querySelector('.player output').textContent.slice(5))"
    front.wait_until(f"{time} > 3")
    front.press(" ")
    assert "Pause" not in buttons(front)
    assert front.complaints == []


@pytest.mark.parametrize("name", METHODS)
def test_the_player_counts_what_the_library_says(front, name):
    stages, accumulate = max(key[1:] for key in PROGRAMS if key[0] == name)
    for field, value in {"method": name, "stages": stages, "accumulate": accumulate}.items():
        choose(front, field, value)
    table, method = PROGRAMS[name, stages, accumulate], method_of(name, accumulate)
    front.run("document.querySelector('.player').focus()")
    front.press("Home")
    for _ in range(table["full"] + table["period"]):
        front.press("ArrowRight")
    idle = 100 * (1 - 3 * table["repeats"] / table["period"])
    for stage, (_, _, _, mean, shown, _) in enumerate(counts(front)):
        assert float(mean) == pytest.approx(method.staleness(stage, stages), abs=0.01)
        assert shown == f"{idle:.0f} %"


def test_motion_begins_only_for_those_who_want_it(browser, site, front):
    assert "Pause" not in buttons(front)
    browser.open(site / "index.html")
    assert "Pause" in buttons(browser)


def test_a_picture_is_there_without_a_script(browser, site):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(site / "index.html")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.querySelector('.player img').naturalWidth") > 0
