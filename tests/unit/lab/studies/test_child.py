"""Process of a run: its result, its lock, and its end with the sweep."""

import json
import threading
from dataclasses import asdict, replace

import pytest

from hocket.errors import DataError, NonFiniteError, RunFolderError
from hocket.runs.config import RunConfig, plain_values
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.summary import Summary
from hocket.training.results.metrics import EpochResult
from hocket_lab.studies import child
from hocket_lab.studies.rows import Row
from hocket_lab.studies.run_folder import RunResult, check_is_run, read_result, write_result


def summary(state, number=0):
    return Summary(state, "", None, (), 1.0, 1.0, (), (), number)


@pytest.mark.parametrize(
    ("end", "code", "result"),
    [
        (summary("finished"), 0, RunResult("finished")),
        (summary("interrupted", 15), 143, None),
        (NonFiniteError("loss is nan"), 1, RunResult("diverged", "loss is nan")),
        (DataError("no data"), 1, RunResult("failed", "no data")),
    ],
    ids=["finished", "stopped", "diverged", "failed"],
)
def test_each_end_leaves_its_result(tmp_path, end, code, result):
    assert child.report(RunConfig(run_dir=tmp_path), end) == code
    assert read_result(tmp_path) == result


def test_an_error_of_the_users_code_is_the_reason(tmp_path, monkeypatch, capsys):
    def fail(config, resume, report):
        error = ValueError("my own check")
        error.add_note("the weights reached are in the folder")
        raise error

    monkeypatch.setattr(child, "train_in_process", fail)
    monkeypatch.setattr(child, "_end_with_parent", lambda: None)
    config = RunConfig(run_dir=tmp_path)
    assert child.main([json.dumps(plain_values(asdict(config))), "{}"]) == 1
    assert read_result(tmp_path) == RunResult("failed", "ValueError: my own check")
    assert "Traceback" in capsys.readouterr().err


def test_a_training_without_all_of_its_metrics_has_failed(tmp_path):
    epochs = [EpochResult(number, 1.0, None, 1.0, 8, (0.0,), (0,)) for number in range(3)]
    finished = replace(summary("finished"), epochs=tuple(epochs))
    log = "".join(f'{{"kind": "epoch", "number": {number}}}\n' for number in (0, 2))
    (tmp_path / "metrics.jsonl").write_text(log)
    assert child.report(RunConfig(run_dir=tmp_path), finished) == 0
    result = read_result(tmp_path)
    assert result.state == "failed"
    assert result.message.startswith("its metrics have 2 of 3 epochs")


def test_a_run_waits_for_the_process_of_an_earlier_sweep(tmp_path):
    locked, waited = threading.Event(), threading.Event()

    def hold():
        with lock_run_dir(tmp_path):
            locked.set()
            waited.wait(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    child._wait_for_lock(tmp_path)
    with lock_run_dir(tmp_path):
        waited.set()
    holder.join()


# Folders of runs, whose files may be damaged.

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
