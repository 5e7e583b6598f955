"""Every figure of README.md and of the pages of results is that of a record, or a setting."""

import re
from itertools import zip_longest

import pytest

from unit.benchmarks.claims import FIGURES, ROOT, SETTINGS

# Numbers, and fractions and multiples in words. Counts in words, such as two stages, are none.
FIGURE = re.compile(
    r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)*"
    r"|\b(?:half|twice|double|triple|third|quarter|dozen|hundred|thousand)\b",
    re.IGNORECASE,
)
# Code, headings, and the tables between markers, which tests/architecture compares.
APART = re.compile(
    r"^```.*?^```$|^<!-- record:.*?<!-- end -->$|^#.*?$", re.DOTALL | re.MULTILINE
)
PICTURE = re.compile(r"!\[([^]]*)\]\([^)]*\)")
LINK = re.compile(r"\[([^][]*)\]\([^)]*\)")
# Code, and names such as ResNet-28-10 and records/gpt-characters-500.
NO_FIGURE = re.compile(r"`[^`]*`|1F1B|[A-Z]\w*-\d[\d-]*|records/[\w-]+")


def sentences(text):
    """Return the captions, the lines of tables and the sentences of a page."""
    text = APART.sub("", text)
    found = [" ".join(caption.split()) for caption in PICTURE.findall(text)]
    text = LINK.sub(r"\1", PICTURE.sub("", text)).replace("**", "")
    for block in re.split(r"\n\s*\n|\n(?=\||\* )", text):
        line = " ".join(block.split())
        found += [line] if line[:1] == "|" else re.split(r"(?<=[.?!]) (?=[A-Z`(\d])", line)
    return found


def figures(sentence):
    return [found.lower() for found in FIGURE.findall(NO_FIGURE.sub("", sentence))]


def as_printed(wanted, found):
    """Return a wanted figure as precisely as the one that was found."""
    if isinstance(wanted, tuple):
        return " and ".join(sorted({as_printed(each, found) for each in wanted}))
    if isinstance(wanted, str):
        return wanted
    digits = len(found.partition(".")[2])
    return f"{wanted:,.{digits}f}" if wanted == wanted else found  # a number, or unknown


def differences(text, listed):
    """Return what differs between the sentences of a page and the list of its figures."""
    shown = {sentence: found for sentence in sentences(text) if (found := figures(sentence))}
    counts = {words: sum(words in sentence for sentence in shown) for words in listed}
    wrong = [
        f"{count} sentences with figures have the words {words!r} of the list, wanted 1"
        for words, count in counts.items()
        if count != 1
    ]
    for sentence, found in shown.items():
        rows = [words for words in listed if words in sentence]
        if len(rows) != 1:
            wrong.append(f"{sentence!r}: found {found}, wanted one row of the list, not {rows}")
            continue
        pairs = zip_longest(listed[rows[0]], found, fillvalue="none")
        if found != (wanted := [as_printed(*pair) for pair in pairs]):
            wrong.append(f"{sentence!r}: found {found}, wanted {wanted}")
    return wrong


@pytest.mark.parametrize("page", FIGURES)
def test_every_figure_of_a_page_is_that_of_its_record_or_a_setting(page):
    settings = {words: numbers.split() for words, (numbers, _) in SETTINGS[page].items()}
    wrong = differences((ROOT / page).read_text(), FIGURES[page] | settings)
    assert not wrong, "\n".join([f"{page} differs from claims.py:", *wrong])


def test_rows_with_figures_of_records_are_apart_from_settings():
    rows = {words: row for page in FIGURES.values() for words, row in page.items()}
    assert [words for words, row in rows.items() if all(isinstance(x, str) for x in row)] == []
    if unknown := [words for words, row in rows.items() if any(x != x for x in row)]:
        pytest.skip(f"git lacks the commits with the records of {unknown}")


PAGE = "It takes **1.20x** ([note 4](b-5.md)). Others take\n1,200 s."
LISTED = {"It takes": [1.204, "4"], "Others": [1200]}


@pytest.mark.parametrize(
    ("page", "listed", "said"),
    [
        (PAGE, {}, ""),
        (PAGE.replace("1.20x", "1.5x"), {}, "found ['1.5', '4'], wanted ['1.2', '4']"),
        (PAGE + " It is 7.", {}, "'It is 7.': found ['7'], wanted one row"),
        (PAGE, {"Fewer": [7]}, "0 sentences with figures have the words 'Fewer'"),
        (PAGE, {"Others": [1200, 3]}, "found ['1,200'], wanted ['1,200', '3']"),
        (PAGE, {"Others": [(1200, 1300)]}, "wanted ['1,200 and 1,300']"),
    ],
)
def test_a_difference_is_named(page, listed, said):
    found = differences(page, LISTED | listed)
    assert len(found) == bool(said)
    assert said in "".join(found)
