"""Curves of runs, read from their metrics."""

import json
import math

from hocket.runs.config import RunConfig
from hocket_lab.studies.curve import (
    Point,
    StageError,
    first_reaching,
    read_curve,
    read_gradient_error,
)
from hocket_lab.studies.target import Target

CONFIG = RunConfig(method="adl:accumulate=2", batch_size=10)


def write(folder, *rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"kind": "epoch", "half a')


def epoch(number, test_loss, **more):
    evaluation = {"loss": test_loss, "error": 0.5, "samples": 9, "exits": [], "ensemble": None}
    row = {"kind": "epoch", "number": number, "loss": 2.0, "evaluation": evaluation}
    return row | {"seconds": 3.0, "samples": 35} | more


def test_batches_updates_samples_and_seconds_add_up(tmp_path):
    rows = [epoch(0, 1.5), epoch(1, None), epoch(2, 1.0, evaluation=None)]
    write(tmp_path, {"kind": "backward", "batch": 3}, *rows)
    first, second, last = read_curve(tmp_path, CONFIG)
    assert (first.batches, first.updates, first.samples, first.seconds) == (4, 2, 35, 3.0)
    assert (second.batches, second.updates, second.samples, second.seconds) == (8, 4, 70, 6.0)
    values = [first.value(name) for name in ("train_loss", "test_loss", "test_error")]
    assert values == [2.0, 1.5, 0.5]
    assert second.test_loss == math.inf  # which JSON does not have
    assert (last.train_loss, last.test_loss, last.test_error) == (2.0, None, None)


def test_a_curve_ends_before_an_epoch_that_is_missing_and_counts_skipped_batches(tmp_path):
    within = {"kind": "evaluation", "updates": 3, "loss": 1.7, "error": 0.6}
    write(tmp_path, epoch(0, 1.5), within, epoch(2, 1.0))
    assert [point.test_loss for point in read_curve(tmp_path, CONFIG)] == [1.5]
    assert len(read_curve(tmp_path, CONFIG, under_way=True)) == 1
    rows = [epoch(0, 1.5, skipped=[2, 1]), within, epoch(1, 1.0, skipped=[0, 1])]
    write(tmp_path, *rows)
    assert [point.skipped for point in read_curve(tmp_path, CONFIG)] == [2, 2, 3]


def test_evaluations_within_an_epoch_have_their_share_of_it(tmp_path):
    within = {"kind": "evaluation", "updates": 1, "loss": 1.7, "error": 0.6}
    write(tmp_path, within, epoch(0, 1.5, updates=2), within | {"updates": 3})
    first, second = read_curve(tmp_path, CONFIG)
    assert (first.updates, first.batches, first.samples, first.seconds) == (1, 2, 18, 1.5)
    assert (first.train_loss, first.test_loss, first.test_error) == (None, 1.7, 0.6)
    assert second.updates == 2
    write(tmp_path, within | {"loss": None}, epoch(0, 1.5, updates=2))
    assert read_curve(tmp_path, CONFIG)[0].test_loss == math.inf


def test_the_first_evaluation_that_reaches_the_target_counts(tmp_path):
    write(tmp_path, *(epoch(n, loss) for n, loss in enumerate([1.5, 1.2, 1.4, 1.1])))
    curve = [Point(0, 0, 0, 0.0, None, None, None), *read_curve(tmp_path, CONFIG)]
    assert first_reaching(curve, Target.parse("test_loss <= 1.2")) == curve[2]
    assert first_reaching(curve, Target("test_loss", 1.0)) is None


def test_the_error_of_gradients_is_the_mean_of_each_stage(tmp_path):
    assert read_gradient_error(tmp_path) == []
    rows = [(1, 1.0, 1.0), (0, 0.5, 2.0), (0, 0.7, 1.0), (0, None, 1.0)]
    write(
        tmp_path,
        *({"kind": "comparison", "stage": s, "cosine": c, "ratio": r} for s, c, r in rows),
    )
    assert read_gradient_error(tmp_path) == [StageError(0, 0.6, 1.5), StageError(1, 1.0, 1.0)]
