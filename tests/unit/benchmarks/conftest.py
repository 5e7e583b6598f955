"""Fixtures of the tests of measurements."""

import contextlib
import importlib
import io
from collections.abc import Iterator

import pytest

from benchmarks.harness import jobs


@pytest.fixture(scope="module")
def in_this_process() -> Iterator[None]:
    """Run trainings of a measurement in this process, which saves importing everything anew."""

    def run_here(module: str, *words: str, threads: int) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            importlib.import_module(module).main(*words)
        return output.getvalue().splitlines()[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "run_module", run_here)
        yield
