"""Rows of metrics for trackers: which ones, by whom, and trackers that fail."""

import json

import pytest

from contract.small import data, mlp, sgd
from hocket import FDG, Trainer
from hocket.callbacks.trackers import Trackers, Tracking
from hocket.errors import OptionError
from hocket.runs.metrics_log import MetricsLog

BATCHES = data(mlp, 6, size=2)


class Notes:
    title = "Notes"

    def __init__(self, fail_at=None):
        self.rows, self.fail_at, self.closed = [], fail_at, []

    def log(self, kind, values):
        if len(self.rows) == self.fail_at:
            raise ConnectionError("gone")
        self.rows.append({"kind": kind, **values})

    def close(self, *, failed=False):
        self.closed.append(failed)
        if self.fail_at == "end":
            raise ConnectionError("gone")


def trained(log=None, callbacks=()):
    watchers = [log.log_event] if log else []
    trainer = Trainer(mlp(2), method=FDG(), optimizer=sgd, watchers=watchers)
    on_epoch = log.log_epoch if log else None

    def on_evaluation(updates, result):
        if log:
            log.log_evaluation(trainer.engine.tick_count, updates, result)

    told = {"on_epoch": on_epoch, "on_evaluation": on_evaluation, "callbacks": callbacks}
    trainer.fit(BATCHES, BATCHES[:1], epochs=2, evaluate_every=2, progress=False, **told)
    return trainer


def plain(rows):
    """Rows as JSON has them, without times."""
    return [json.loads(json.dumps(row)) | {"seconds": 0} for row in rows]


def test_trackers_of_a_log_get_the_rows_of_its_file(tmp_path):
    """The callback passes on the same rows until no batch enters any more."""
    notes, more = Notes(), Notes()
    with MetricsLog(tmp_path, 2, tensorboard=False, trackers=Trackers([notes])) as log:
        trained(log, [Tracking(more, every=2)])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert plain(notes.rows) == [json.loads(line) | {"seconds": 0} for line in lines]
    assert {row["kind"] for row in notes.rows} == {"backward", "update", "evaluation", "epoch"}
    assert (notes.closed, more.closed) == ([False], [])
    entered = [
        row
        for row in notes.rows
        if row["kind"] == "evaluation" or row.get("tick", 0) < 2 * len(BATCHES)
    ]
    assert plain(more.rows) == plain(entered)


def test_a_training_that_fails_and_a_tracker_that_cannot_be_closed_are_told(tmp_path):
    notes = Notes()
    log = MetricsLog(tmp_path, 2, tensorboard=False, trackers=Trackers([notes]))
    with pytest.raises(ZeroDivisionError), log:
        _ = 1 / 0
    assert notes.closed == [True]
    bad, good = Notes(fail_at="end"), Notes()
    with pytest.warns(UserWarning, match="the training goes on without it"):
        Trackers([bad, good]).close(failed=True)
    assert good.closed == [True]


def test_a_tracker_that_fails_is_left_out_and_the_training_goes_on():
    bad, good = Notes(fail_at=3), Notes()
    with pytest.warns(UserWarning, match="Notes no longer accepts metrics") as told:
        trained(callbacks=[Tracking(bad, good)])
    assert len(told) == 1
    assert len(bad.rows) == 3 < len(good.rows)


def test_an_impossible_interval_is_refused():
    with pytest.raises(OptionError, match="every is 0; use a number of batches of at least 1"):
        Tracking(every=0)
