"""A newcomer's clock: from an empty folder to a model of transformers in two processes."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.versions import ROOT
from hocket.errors import HocketError

EXAMPLE = "examples/14_transformers_trainer.py"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NewcomerSettings:
    """Settings of the newcomer's clock.

    Attributes:
        out: Folder of the record.
    """

    out: Path = Path("records/newcomer")


DEFAULTS = NewcomerSettings()


def measure_newcomer(settings: NewcomerSettings = DEFAULTS) -> None:
    """Time the three commands of the page on transformers' Trainer in a new environment.

    Raises:
        HocketError: One of them failed.
    """
    record = Record.from_settings("newcomer", settings)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as home:
        bin_, wanted = Path(home, "env/bin"), f"{ROOT}[cli,transformers]"
        install = ["pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), wanted]
        steps: dict[str, Sequence[str | Path]] = {
            "python3 -m venv env": [sys.executable, "-m", "venv", Path(home, "env")],
            "pip install 'hocket[cli,transformers]'": [bin_ / "python", "-m", *install],
            f"hocket launch --processes 2 {EXAMPLE}": [
                *(bin_ / "hocket", "launch", "--processes", "2", ROOT / EXAMPLE),
            ],
        }
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for step, command in steps.items():
            start_s = time.perf_counter()
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, env=kept | {"HOME": home}
            )
            if ended.returncode:
                raise HocketError(f"{step} ended with {ended.returncode}:\n{ended.stderr}")
            wall_s = time.perf_counter() - start_s
            rows.append({"row": step, "wall_s": wall_s})
            print(f"{step}: {wall_s:.0f} s", file=sys.stderr, flush=True)
    rows.append({"row": "together", "wall_s": sum(row["wall_s"] for row in rows)})
    record.with_rows(rows).write(settings.out)
