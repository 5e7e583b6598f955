"""The stable names exist, are documented, and are all that examples and documents use."""

import ast
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args, get_origin

import pytest

import hocket
import hocket_lab
from hocket.methods import METHODS, build_method

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TABLE = re.findall(r"^\| .*", (ROOT / "docs/api/README.md").read_text(), re.MULTILINE)
STABLE = re.findall(r"`(hocket(?:_lab)?\.[\w.]+)`", "".join(TABLE))
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {
    str(file.relative_to(ROOT)): "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for file in FILES
    if "```python" in (text := file.read_text())
} | {f"examples/{file.name}": file.read_text() for file in (ROOT / "examples").glob("*.py")}
# They show a place in the source, not a program of the reader's.
INNER = {"docs/add-a-method.md": {"hocket.methods.method.Method"}}


# Faces for another library, each under the name of the library, which only it imports.
OTHERS = "hocket.integrations."


def resolve(name):
    """Return what a dotted name of Hocket stands for."""
    package, *parts = name.split(".")
    found = import_module(package)
    for i, part in enumerate(parts):
        if isinstance(found, ModuleType) and not hasattr(found, part):
            import_module(".".join([package, *parts[: i + 1]]))
        found = getattr(found, part)
    return found


def used(text):
    """Return the dotted names of Hocket that a program uses."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("hocket."):
            names.add(ast.unparse(node))
    return {x for x in names if not any(y.startswith(f"{x}.") for y in names)}


@pytest.mark.parametrize("name", STABLE)
def test_a_stable_name_exists_and_says_what_it_is(name):
    first = (resolve(name).__doc__ or "").strip().partition("\n")[0]
    # A dataclass without a docstring gets its signature for one.
    assert len(first) > 15
    assert not first.startswith(f"{name.rpartition('.')[2]}(")


def test_types_in_signatures_have_their_values_on_a_page():
    pages = [(ROOT / f"docs/api/{page}.md").read_text() for page in ("training", "methods")]
    told = dict(re.findall(r"^\* `(\w+)`: (.*)$", "".join(pages), re.MULTILINE))
    options = hocket.TrainingOptions.__mro__[:-1]
    modules = {sys.modules[used.__module__] for used in (*METHODS.values(), *options)}
    found = literals(modules)
    assert len(found) > 10
    for name, values in found.items():
        assert [value for value in values if f'"{value}"' not in told[name]] == []


def literals(modules):
    """Return the values of literals that modules import or define, by their names."""
    return {
        name: get_args(found)
        for module in modules
        for name, found in vars(module).items()
        if get_origin(found) is Literal
    }


def test_each_stable_name_has_its_docstring_on_one_page_of_the_site():
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    assert sorted(re.findall(r"^::: (\S+)$", pages, re.MULTILINE)) == sorted(STABLE)


def test_public_names_of_the_package_are_stable():
    """And no stable name is deeper than the face of a package."""
    names = {name for name in STABLE if name.count(".") == 1}
    faces = {name.rpartition(".")[0] for name in STABLE if not name.startswith(OTHERS)}
    faces -= {"hocket", "hocket_lab"}
    public = {f"hocket.{name}" for name in hocket.__all__}
    assert names | faces == public | {f"hocket_lab.{name}" for name in hocket_lab.__all__}
    assert len(STABLE) == len(set(STABLE))


@pytest.mark.parametrize("program", PROGRAMS)
def test_documents_and_examples_use_stable_names_only(program):
    stable = {id(resolve(name)) for name in STABLE}

    def covered(name):
        # A name is stable itself, or it is an attribute of one that is.
        return id(resolve(name)) in stable or ("." in name and covered(name.rpartition(".")[0]))

    wrong = {name for name in used(PROGRAMS[program]) if name != "hocket" and not covered(name)}
    assert wrong <= INNER.get(program, set())


def test_the_description_on_an_index_needs_no_other_file():
    text = (ROOT / "README.md").read_text()
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert "![" not in text
    assert re.findall(r"\]\(([^)]*)\)", text) == []


def test_the_citation_names_the_version_and_the_papers_of_all_methods():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {hocket.__version__}\n" in text
    papers = {build_method(name).paper for name in METHODS}
    on_arxiv = {paper.removeprefix("arXiv ") for paper in papers if paper.startswith("arXiv ")}
    assert on_arxiv == set(re.findall(r"https://arxiv\.org/abs/([\d.]+)", text))
