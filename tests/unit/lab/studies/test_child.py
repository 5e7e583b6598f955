"""Process of a run: its result, its lock, and its end with the sweep."""

import json
import threading
from dataclasses import asdict, replace

import pytest

from hocket.errors import DataError, NonFiniteError
from hocket.runs.config import RunConfig, plain_values
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.summary import Summary
from hocket.training.results.metrics import EpochResult
from hocket_lab.studies import child
from hocket_lab.studies.run_folder import RunResult, read_result


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
