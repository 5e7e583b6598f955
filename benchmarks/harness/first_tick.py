"""``hocket train`` that exits after its first action.

Run as ``python -m benchmarks.harness.first_tick OPTIONS``, with the options of `hocket train`.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from hocket.cli.main import main as run_command


def main(words: Sequence[str]) -> int:
    """Train until the first action is done, then exit at once; return the code of a failure."""
    serial: Any = import_module("hocket.engine.serial")
    execute = serial.execute

    def execute_and_exit(*arguments: Any) -> None:
        execute(*arguments)
        os._exit(0)

    serial.execute = execute_and_exit
    return run_command(["train", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
