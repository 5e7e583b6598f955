"""Hook of mkdocs: pages that are not in docs/, links that lead out of it, and equations.

The documents are written to be read in the repository as well. So README.md, the changelog, the
examples and the pictures of records become files of the site here, links to them are rewritten,
and links to the source, which is not on the site, become plain text.
"""

import ast
import inspect
import posixpath
import re
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from hocket import Trainer, draw_program, format_program, unroll
from hocket.methods import METHODS, build_method

ROOT = Path(__file__).parents[1]
STAGES, BATCHES = 3, 6
# Files of the repository that are pages or pictures of the site, and what they are there.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
}
ELSEWHERE |= {f"examples/{f.name}": f"examples/{f.stem}.md" for f in ROOT.glob("examples/*.py")}
ELSEWHERE |= {
    f"examples/{f.name}": f"examples/{f.stem}_sh.md" for f in ROOT.glob("examples/*.sh")
}
ELSEWHERE |= {p: p for f in ROOT.glob("records/*/*.svg") if (p := str(f.relative_to(ROOT)))}
SOURCES = {page: source for source, page in ELSEWHERE.items()}
LINK = re.compile(r"(`[^`\n]*`)|(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are not in docs/."""
    for source, page in ELSEWHERE.items():
        file = ROOT / source
        if file.suffix == ".svg":
            files.append(File.generated(config, page, abs_src_path=str(file)))
        else:
            files.append(File.generated(config, page, content=page_of(file)))
    with TemporaryDirectory() as folder:
        for name in scheduled():
            ticks = list(unroll(build_method(name), STAGES, BATCHES))
            drawn = Path(folder, f"{name}.svg")
            draw_program(ticks, STAGES, f"{name} on {STAGES} stages", drawn)
            picture = File.generated(config, f"programs/{name}.svg", content=drawn.read_bytes())
            files.append(picture)
    return files


def page_of(file: Path) -> str:
    """Return a file of the repository as a page; a program with its code below its text."""
    text = file.read_text()
    if file.suffix == ".md":
        return text
    if file.suffix == ".sh":
        return f"# {file.name}\n\n```sh\n{text}```\n"
    said = ast.get_docstring(ast.parse(text)) or ""
    code = text.partition('"""\n\n')[2]
    said = re.sub(
        r"((?:^    .*\n)+)", lambda m: f"```sh\n{dedent(m[1])}```\n", said, flags=re.MULTILINE
    )
    return f"# {file.name}\n\n{said}\n\n```python\n{code}```\n"


def scheduled() -> list[str]:
    """Return the names of the methods that have a program; asynchronous stages have none."""
    return [name for name in METHODS if not build_method(name).free_running]


def programs() -> str:
    """Return a section for each program, with the methods that have it, from their tables."""
    sharing: dict[str, list[str]] = {}
    for name in scheduled():
        ticks = format_program(unroll(build_method(name), STAGES, BATCHES), STAGES)
        sharing.setdefault(ticks, []).append(name)
    parts = []
    for ticks, names in sharing.items():
        picture = f"![Program of {names[0]}](programs/{names[0]}.svg)"
        lines = "\n".join(map(describe, names))
        parts.append(
            f"## {', '.join(names)}\n\n{lines}\n\n{picture}\n\n```text\n{ticks}\n```\n"
        )
    return "\n".join(parts)


def describe(name: str) -> str:
    """Return an item of a list: the idea of a method, its paper, and how late it is."""
    method, build = build_method(name), METHODS[name]
    idea = (getattr(build, "func", build).__doc__ or "").partition("\n")[0]
    idea = idea.removeprefix("Build ").rstrip(".")
    paper = re.sub(r"arXiv (\S+)", r"[arXiv \1](https://arxiv.org/abs/\1)", method.paper)
    late = [method.staleness(stage, STAGES) for stage in range(STAGES)]
    how = f"`{method.linearize}`, staleness {', '.join(f'{s:g}' for s in late)}"
    return f"* **{name}**: {idea} ({paper}); {how if any(late) else 'nothing is late'}."


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page for the site."""
    here = page.file.src_uri
    if here == "programs.md":
        markdown += "\n" + programs()
    source = SOURCES.get(here, f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        code, picture, text, target, anchor = found.groups()
        if code or not target or "://" in target or target.startswith("programs/"):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / place).is_dir():
            place += "/README.md"
        inside = place.removeprefix("docs/") if place.startswith("docs/") else None
        to = ELSEWHERE.get(place, inside)
        if to is None or not (ROOT / place).exists():
            return str(text)
        away = posixpath.relpath(to, posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({away}{anchor or ''})"

    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(b if b.startswith("```") else LINK.sub(link, b) for b in blocks)


def on_page_content(html: str, **_: Any) -> str:
    """Turn equations into MathML, which browsers draw without a script."""

    def equation(found: re.Match[str]) -> str:
        block = found[1] == "div"
        latex = unescape(found[2]).strip()[2:-2]
        return convert(latex, display="block" if block else "inline")

    return re.sub(r'<(div|span) class="arithmatex">(.*?)</\1>', equation, html, flags=re.DOTALL)


class PlainDocstrings(griffe.Extension):
    """Docstrings as Markdown: sessions of Python in fences, roles as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.name == "Trainer" and obj.docstring is not None:
            obj.docstring.value = inspect.getdoc(Trainer) or ""  # with the texts of options
        if obj.docstring is not None:
            text = re.sub(r":\w+:(`[^`]+`)", r"\1", obj.docstring.value)
            session = r"((?:^ *>>> .*\n?(?:^ *\S.*\n?)*)+)"
            obj.docstring.value = re.sub(
                session, lambda m: f"```pycon\n{m[1].rstrip()}\n```\n", text, flags=re.MULTILINE
            )
