import re
from operator import attrgetter
from pathlib import Path

import pytest
from draw_pictures import PICTURES

from benchmarks.harness.record import FILE, Record
from benchmarks.report.render import render, stale_excerpts
from benchmarks.report.tables_faults import expectations_table
from hocket.methods import METHODS
from hocket.runs.tables import method_markdown

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = sorted(path.parent for path in (ROOT / "records").glob(f"*/{FILE}"))
SHOWN = [x for d in DOCUMENTS for x in re.findall(r"\.\./(records/[^)]*\.svg)", d.read_text())]
NAME = attrgetter("name")
ON_PHONE = 368  # between the margins of 400 pixels


@pytest.mark.parametrize(
    ("page", "marker", "table"),
    [
        ("methods", "methods", lambda: method_markdown(3)),
        ("guarantees", "promises", expectations_table),
    ],
)
def test_the_tables_of_methods_and_faults_are_what_commands_print(page, marker, table):
    text = (ROOT / f"docs/{page}.md").read_text()
    (shown,) = re.findall(rf"<!-- {marker} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert shown == table()


def test_each_method_has_a_picture_its_plain_version_and_its_cost():
    items = re.split(r"^\* ", (ROOT / "docs/methods.md").read_text(), flags=re.MULTILINE)[1:]
    heads = "".join(item.partition(":")[0] for item in items)
    methods = {name for name in METHODS if not name.endswith("-official")}
    assert set(re.findall(r"\*\*([\w-]+)\*\*", heads)) == methods
    assert all(re.search("pictures/.*tests/reference/.*measured", x, re.DOTALL) for x in items)


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAME)
def test_every_link_leads_to_a_file(document):
    links = re.findall(r"\]\(([^)#]+)", document.read_text())
    missing = [x for x in links if "://" not in x and not (document.parent / x).exists()]
    assert not missing


def test_the_layout_names_modules_that_exist():
    text = (ROOT / "docs/layout.md").read_text()
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    assert len(named) > 20
    roots = (ROOT, ROOT / "src", ROOT / "src/hocket")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_page_is_once_in_the_navigation_of_the_site():
    """Those of docs/design/ are linked from its list."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    pages += [f"examples/{program.stem}.md" for program in (ROOT / "examples").glob("*.py")]
    wrong = [page for page in pages if navigation.count(f": {page}\n") != 1]
    assert [page for page in wrong if not page.startswith("design/0")] == []


@pytest.mark.parametrize("folder", RECORDS, ids=NAME)
def test_a_records_table_is_rendered_from_it(folder, tmp_path):
    copy = tmp_path / folder.name
    Record.read(folder).write(copy)
    render(copy)
    assert (folder / "README.md").read_text() == (copy / "README.md").read_text()


@pytest.mark.parametrize("folder", RECORDS, ids=NAME)
def test_a_record_says_where_it_comes_from(folder):
    record = Record.read(folder)
    assert record.command.startswith(("hocket bench", "hocket sweep", "python -m benchmarks"))
    assert re.fullmatch("[0-9a-f]{40}", record.commit)
    assert record.dirty is False
    assert record.versions["torch"]
    assert record.machine["cpu"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAME)
def test_quoted_records_are_up_to_date(document):
    assert stale_excerpts(document, ROOT / "records") == []


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_programs_and_records_say(name):
    assert (ROOT / "docs/pictures" / name).read_text() == PICTURES[name]()


@pytest.mark.parametrize("name", [*(f"docs/pictures/{name}" for name in PICTURES), *SHOWN])
def test_a_picture_is_legible_on_a_phone(name):
    """Letters have a size, or are paths of a size of 100 that are scaled, as in records."""
    drawn = (ROOT / name).read_text()
    (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', drawn)
    letters = re.findall(r'font-size="(\d+)"|scale\((0\.\d+) -', drawn)
    smallest = min(float(size or 100 * float(scale)) for size, scale in letters)
    assert smallest * ON_PHONE / float(width) >= 12


def test_every_picture_is_on_a_page():
    text = "".join(document.read_text() for document in DOCUMENTS) + (
        (ROOT / "mkdocs.yml").read_text() + (ROOT / "examples/README.md").read_text()
    )
    kept = [*(ROOT / "docs/pictures").glob("*.svg"), *(ROOT / "docs/pictures").glob("*.png")]
    assert [file.name for file in kept if f"pictures/{file.name}" not in text] == []
