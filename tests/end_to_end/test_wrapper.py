"""`./hocket` sets up `.venv` with pip or uv, from the sources that the machine has."""

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).parents[2]
INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
# Stand for Python, uv and nvidia-smi: they write down what they are asked for.
PYTHON = """#!/bin/sh
case "$*" in
*version_info*) exit "${OLD:-0}" ;;
*urlopen*) exit "${OFFLINE:-0}" ;;
*"pip config list") echo "$CONFIGURED" ;;
*--version*) echo "Python 3.9" ;;
"-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/hocket ;;
esac
case "$*" in
-c*|*config*|*--version*) ;;
*) echo "python $*" >>calls ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>calls
mkdir -p .venv/bin; cp "$PYTHON" .venv/bin/python; cp "$PYTHON" .venv/bin/hocket
"""
# It may call no others.
COMMANDS = ("cp", "dirname", "grep", "mkdir", "sh", "timeout", "touch", "uname")


def set_up(folder, words="train", tools=(), **environment):
    """Call the wrapper in a folder and return what it called, one line each."""
    (folder / "bin").mkdir()
    for name, text in {"python": PYTHON, "uv": UV, "nvidia-smi": "#!/bin/sh"}.items():
        if name == "python" or name in tools:
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
    for name in COMMANDS:
        (folder / "bin" / name).symlink_to(which(name))
    for name in ("hocket", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    usual = {"PATH": f"{folder}/bin", "PYTHON": f"{folder}/bin/python"}
    done = subprocess.run(
        ["sh", "hocket", *words.split()],
        cwd=folder,
        env=os.environ | usual | {"CONFIGURED": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    calls = folder / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_pip_takes_the_cpu_builds_of_pytorch_where_there_is_no_gpu(tmp_path):
    done, (make, install, train) = set_up(tmp_path)
    assert (done.returncode, make, train) == (0, "python -m venv .venv", "python train")
    assert install.startswith("python -m pip install")
    assert INDEX in install
    assert "--constraint constraints.txt --editable .[cli,data,plot]" in install
    assert (tmp_path / ".venv/installed-cli,data,plot").exists()


@pytest.mark.parametrize(
    ("tools", "environment"),
    [
        (["nvidia-smi"], {}),
        ([], {"OFFLINE": "1"}),
        (["uv"], {"CONFIGURED": "global.find-links='/opt/wheels'"}),
    ],
    ids=["gpu", "offline", "configured"],
)
def test_pip_asks_its_own_sources_only(tools, environment, tmp_path):
    _, (_, install, _) = set_up(tmp_path, tools=tools, **environment)
    assert install.startswith("python -m pip install")
    assert "index" not in install


def test_uv_is_used_where_it_is_there(tmp_path):
    _, (make, install, train) = set_up(tmp_path, tools=["uv"])
    assert make.startswith("uv venv --quiet --seed")
    assert install.startswith("uv pip install --python .venv/bin/python --index-strategy")
    assert INDEX in install
    assert train == "python train"


@pytest.mark.parametrize(
    ("words", "extras"), [("test", "test,docs"), ("test --longer", "test,docs,package")]
)
def test_the_tests_bring_their_tools(words, extras, tmp_path):
    _, calls = set_up(tmp_path, words)
    assert any(f".[{extras}]" in call for call in calls)


def test_an_old_python_is_refused(tmp_path):
    done, calls = set_up(tmp_path, OLD="1")
    assert done.returncode == 2
    assert "hocket needs Python 3.11 or newer" in done.stderr
    assert calls == []
