"""The site is built without a warning, and asks no other server for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hocket

ROOT = Path(__file__).parents[2]
SOURCE = Path(hocket.__file__).parents[1]
# Elements that a browser fetches by itself.
FETCHED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.html")}
    assert {Path("index.html"), Path("tutorial.html"), Path("api/training.html")} <= set(pages)
    assert not [url for page in pages.values() for url in FETCHED.findall(page)]
    assert "arithmatex" not in "".join(pages.values()), "every equation is MathML"
    assert "Parameters:" in pages[Path("api/training.html")]
