"""What tests of measurements share."""

import contextlib
import importlib
import io
from collections.abc import Iterator

import pytest

from benchmarks.harness import jobs


@pytest.fixture(scope="module")
def in_this_process() -> Iterator[None]:
    """Trainings of a measurement, one after the other, do not import everything anew each."""

    def run(module: str, *words: str, threads: int) -> str:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            importlib.import_module(module).main(*words)
        return said.getvalue().splitlines()[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "in_own_process", run)
        yield
