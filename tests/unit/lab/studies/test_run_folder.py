"""Result of a run, from files that may be damaged."""

import pytest

from hocket.errors import RunFolderError
from hocket_lab.studies.rows import Row
from hocket_lab.studies.run_folder import (
    RunResult,
    check_is_run,
    read_result,
    write_result,
)

RUN = Row("row", {"epochs": 2}, ()).run(None, 0)


@pytest.mark.parametrize("text", ["", "[1]", '{"end": 1}', '{"state": "lost"}'])
def test_a_result_is_read_as_it_was_written_and_a_damaged_one_is_refused(tmp_path, text):
    assert read_result(tmp_path) is None
    write_result(tmp_path, RunResult("diverged", "loss is nan"))
    assert read_result(tmp_path) == RunResult("diverged", "loss is nan")
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"result\.json'.*; delete it"):
        read_result(tmp_path)


def test_the_folder_of_another_run_is_refused(tmp_path):
    check_is_run(tmp_path, RUN)
    RUN.config.write(tmp_path / "run.json")
    check_is_run(tmp_path, RUN)
    Row("row", {"epochs": 3}, ()).run(None, 0).config.write(tmp_path / "run.json")
    with pytest.raises(RunFolderError, match=r"(?s)another run.*epochs is 3; the study has 2"):
        check_is_run(tmp_path, RUN)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"is not JSON.*; move .* away"):
        check_is_run(tmp_path, RUN)
