"""The prose rule: phrases that English-speaking engineers do not use are rare, or do not occur.

``python tests/architecture/test_prose.py src/hocket/stage docs`` lists those that it finds.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEVER = 0.0
# Most of each per 1,000 words: of docstrings and comments, and of documents.
LIMITS = {
    r"(that|those) of": 0.3,
    r"of (my|our|your|his|its|their) own": 0.1,
    r"in the place of": NEVER,
    r"in words": NEVER,
    r"(take|takes|taking|took) note": NEVER,
    r"vain": NEVER,
    r"be it by": NEVER,
    r"nobody": 0.1,
    r"(stand|stands|stood|standing) for": 0.1,
    r"(is|are|was|were|be) asked": 0.1,
    r"(whoever|whatever)": 0.05,
    r"beside": 0.05,
}
# Most of each per 1,000 words of documents. A gradient for older weights is stale, not late.
LIMITS_OF_DOCUMENTS = LIMITS | {
    r"(go|goes|going|went) on": 0.05,
    r"foreseen": NEVER,
    r"but for": NEVER,
    r"the (least|lesser)": NEVER,
    r"late(ness)?": 0.05,
}
SOURCES = [ROOT / "src", ROOT / "benchmarks"]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Code, tables that are written by commands, and targets of links.
NO_PROSE = [r"^```.*?^```$", r"<!-- (?:record|methods|promises).*?<!-- end -->", r"`[^`]*`"]
NO_PROSE += [r"(?<=\])\([^)]*\)"]


@cache
def prose(file: Path) -> list[tuple[int, str]]:
    """Docstrings and comments of a file, or paragraphs of a document, with their lines."""
    read = read_document if file.suffix == ".md" else read_prose
    return list(read(file.read_text()))


def read_document(text: str) -> Iterator[tuple[int, str]]:
    def blank(found: re.Match[str]) -> str:
        return "X" + "\n" * found[0].count("\n")

    for pattern in NO_PROSE:
        text = re.sub(pattern, blank, text, flags=re.DOTALL | re.MULTILINE)
    line = 1
    for paragraph in text.split("\n\n"):
        yield line, paragraph
        line += paragraph.count("\n") + 2


def read_prose(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    comment, line, before = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != before + 1:
                yield line, comment
                comment = ""
            line = line if comment else token.start[0]
            comment, before = f"{comment} {token.string.lstrip('# ')}", token.start[0]
    yield line, comment


def found(phrase: str, *places: Path) -> list[str]:
    """Places in which a phrase occurs, also across two lines."""
    pattern = re.compile(rf"\b{phrase}\b", re.IGNORECASE)
    return [
        f"{file}:{line}: {match[0]}"
        for place in places
        for file in files_of(place)
        for line, text in prose(file)
        for match in pattern.finditer(" ".join(text.split()))
    ]


def files_of(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])


def count_words(place: Path) -> int:
    return sum(len(text.split()) for file in files_of(place) for _, text in prose(file))


@pytest.mark.parametrize("phrase", LIMITS)
def test_docstrings_and_comments_are_plain(phrase):
    check(phrase, LIMITS[phrase], SOURCES)


@pytest.mark.parametrize("phrase", LIMITS_OF_DOCUMENTS)
def test_documents_are_plain(phrase):
    check(phrase, LIMITS_OF_DOCUMENTS[phrase], DOCUMENTS)


def check(phrase: str, most: float, folders: list[Path]) -> None:
    places = found(phrase, *folders)
    assert len(places) <= most * sum(map(count_words, folders)) / 1000, "\n".join(places)


def test_phrases_are_found_across_lines_and_in_comments(tmp_path):
    text = '"""Sum of weights and those\nof heads."""\nx = 1  # in\n# words\n"""In words."""\n'
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text('text = "in words"\ny = 1  # in\n\n# words\n')
    assert len(found("(that|those) of", tmp_path)) == 1
    assert [place.partition("a.py:")[2] for place in found("in words", tmp_path)] == [
        "5: In words",
        "3: in words",
    ]
    assert count_words(tmp_path) == 13


def test_phrases_are_found_in_documents_and_not_in_their_code(tmp_path):
    text = "# In\nwords\n\n`in words` [x](in words)\n\n```\nin words\n```\n\nAnd in\nwords.\n"
    (tmp_path / "a.md").write_text(text)
    assert [place.partition("a.md:")[2] for place in found("in words", tmp_path)] == [
        "1: In words",
        "10: in words",
    ]


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:]]
    print(*(place for x in LIMITS_OF_DOCUMENTS for place in found(x, *places)), sep="\n")
