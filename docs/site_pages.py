"""Hook of mkdocs: pages that are not in docs/, links that lead out of it, and equations.

The documents are written to be read in the repository as well. So README.md, the changelog, the
examples, the plain versions of methods and the records become files of the site here, links to
them are rewritten, and links to sources that are not on the site become plain text. The front
page gets buttons and a player, and each example a picture.
"""

import ast
import json
import posixpath
import re
from html import unescape
from pathlib import Path
from textwrap import dedent
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pictures import examples
from pictures.programs import costs, method_picture
from site_player import programs as player_programs

from hocket import format_program, unroll
from hocket.methods import METHODS, build_method, parse_method

ROOT = Path(__file__).parents[1]
STAGES, BATCHES = 3, 6
# Files of the repository that are pages or pictures of the site, and what they are there.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
    "records": "records/index.md",
}
ELSEWHERE |= {f"examples/{f.name}": f"examples/{f.stem}.md" for f in ROOT.glob("examples/*.py")}
ELSEWHERE |= {
    f"examples/{f.name}": f"examples/{f.stem}_sh.md" for f in ROOT.glob("examples/*.sh")
}
PLAIN = {f for f in ROOT.glob("tests/reference/*.py") if not f.stem.startswith("test_")}
ELSEWHERE |= {f"tests/reference/{f.name}": f"reference/{f.stem}.md" for f in PLAIN}
ELSEWHERE |= {p: p for f in ROOT.glob("records/*/*.svg") if (p := str(f.relative_to(ROOT)))}
RECORDS = sorted(file.parent.name for file in ROOT.glob("records/*/README.md"))
ELSEWHERE |= {f"records/{name}/README.md": f"records/{name}/index.md" for name in RECORDS}
SOURCES = {page: source for source, page in ELSEWHERE.items()}
# Methods and stages that the examples train; pictures.examples has those that compare.
TRAINED = {
    "01_quickstart": ("fdg", 2),
    "02_own_network": ("fdg", 3),
    "06_bert": ("ddg", 2),
    "07_gpt_muon": ("adl:accumulate=4", 3),
    "08_unet": ("fdg", 3),
    "09_two_machines": ("fdg:order=forward-first", 2),
    "10_own_method": ("fdg:order=forward-first,forward_delay=2,backward_delay=2", 2),
    "13_search": ("fdg", 2),
    "14_transformers_trainer": ("paci:accumulate=4", 2),
    "15_ray": ("fdg", 2),
    "16_own_loss": ("adl:accumulate=4", 2),
}
# Two more print two numbers each, and show what these are about.
SHARED = {
    "11_own_remedy": (
        "stale.svg",
        "Stage 0 updates three times between the forward of batch 6 and its backward",
    ),
    "12_study": ("images.svg", "What a study finds: a row for each method"),
}
STILL = re.compile(r"!\[[^\]]*\]\(docs/pictures/why\.svg\)")
FRONT = """
[Start](docs/tutorial.md){ .md-button .md-button--primary }
[Choose a method](docs/choose.md){ .md-button }

```sh
./hocket train
./hocket methods --stages 4
```

<div class="player" markdown>

STILL

</div>
<script type="application/json" id="programs">PROGRAMS</script>
<script src="player.js" defer></script>
"""
WIDE = 4  # columns of a table; where one has more, no contents are shown at the right
LINK = re.compile(r"(`[^`\n]*`)|(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are not in docs/."""
    for source, page in ELSEWHERE.items():
        file = ROOT / source
        if file.suffix == ".svg":
            files.append(File.generated(config, page, abs_src_path=str(file)))
        else:
            files.append(File.generated(config, page, content=page_of(file)))
    drawn = {f"programs/{name}.svg": method_picture(name) for name in scheduled()}
    drawn |= {
        f"examples/programs/{name}.svg": method_picture(*given)
        for name, given in TRAINED.items()
    }
    drawn |= {
        f"examples/programs/{name}.svg": picture()
        for name, (picture, _) in examples.PICTURES.items()
    }
    for place, picture in drawn.items():
        files.append(File.generated(config, place, content=picture))
    return files


def page_of(file: Path) -> str:
    """Return a file of the repository as a page; a program with its code below its text."""
    if file.is_dir():
        listed = [f"* [{name}]({file.name}/{name}/README.md)" for name in RECORDS]
        return "\n".join([f"# {file.name.capitalize()}", "", *listed])
    text = file.read_text()
    if file.suffix == ".md":
        return text
    if file in PLAIN:
        return f"# {file.relative_to(ROOT)}\n\n```python\n{text}```\n"
    picture = picture_of(file.stem)
    if file.suffix == ".sh":
        return f"# {file.name}\n\n{picture}\n\n```sh\n{text}```\n"
    said = ast.get_docstring(ast.parse(text)) or ""
    code, _, output = text.partition('"""\n\n')[2].partition("\n# It prints:\n#\n")
    said = re.sub(
        r"((?:^    .*\n)+)", lambda m: f"```sh\n{dedent(m[1])}```\n", said, flags=re.MULTILINE
    )
    printed = re.sub("^# {0,3}", "", output, flags=re.MULTILINE)
    return (
        f"# {file.name}\n\n{said}\n\n{picture}\n\n```python\n{code}```\n\n"
        f"It prints:\n\n```text\n{printed}```\n"
    )


def picture_of(example: str) -> str:
    """Return the picture of an example: of what it trains, or of what it prints."""
    if example in SHARED:
        file, seen = SHARED[example]
        return f"![{seen}](../docs/pictures/{file})"
    if example in examples.PICTURES:
        _, seen = examples.PICTURES[example]
    else:
        name, stages = TRAINED[example]
        seen = f"Program of {name} on {stages} stages: {costs(parse_method(name), stages)}"
    return f"![{seen}](programs/{example}.svg)"


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
        seen = f"Program of {names[0]}: {costs(build_method(names[0]), STAGES)}"
        picture = f"![{seen}](programs/{names[0]}.svg)"
        lines = "\n".join(map(describe, names))
        parts.append(
            f"## {', '.join(names)}\n\n{lines}\n\n{picture}\n\n```text\n{ticks}\n```\n"
        )
    return "\n".join(parts)


def describe(name: str) -> str:
    """Return an item of a list: the idea of a method, its paper, and its staleness."""
    method, build = build_method(name), METHODS[name]
    idea = (getattr(build, "func", build).__doc__ or "").partition("\n")[0]
    idea = idea.removeprefix("Build ").rstrip(".")
    paper = re.sub(r"arXiv (\S+)", r"[arXiv \1](https://arxiv.org/abs/\1)", method.paper)
    stale = [method.staleness(stage, STAGES) for stage in range(STAGES)]
    how = f"`{method.linearize}`, staleness {', '.join(f'{s:g}' for s in stale)}"
    return f"* **{name}**: {idea} ({paper}); {how if any(stale) else 'nothing is stale'}."


def front(markdown: str) -> str:
    """Return the front page with buttons, and with the player for its picture."""
    data = json.dumps(player_programs(), separators=(",", ":"))
    return STILL.sub(
        lambda found: FRONT.replace("STILL", found[0]).replace("PROGRAMS", data),
        markdown,
        count=1,
    )


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page for the site, and say which columns it has at its sides."""
    here = page.file.src_uri
    if here == "index.md":
        markdown = front(markdown)
        page.meta["hide"] = ["navigation", "toc"]
    elif any(row.count("|") > WIDE + 1 for row in re.findall(r"^\|.*", markdown, re.MULTILINE)):
        page.meta["hide"] = ["toc"]
    if here.startswith(("records/", "reference/")):
        page.meta["search"] = {"exclude": True}
    if here == "programs.md":
        markdown += "\n" + programs()
    source = SOURCES.get(here, f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        code, picture, text, target, anchor = found.groups()
        if code or not target or "://" in target or target.startswith("programs/"):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / place).is_dir() and place not in ELSEWHERE:
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


def on_post_build(config: MkDocsConfig) -> None:
    """Write the file that pages ask for when they are opened from a folder.

    There browsers allow no search, for which it would be the index.
    """
    Path(config.site_dir, "search/search_index.js").write_text("var __index = {};\n")
