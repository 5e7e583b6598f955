"""Searches with runs in this process: what is tried, kept, shared, chosen and reported."""

import itertools
import json
import math
import re

import optuna
import pytest

import hocket
from hocket import Study
from hocket.errors import OptionError, RunFolderError
from hocket.options import Named
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.sweeps import search as search_module
from hocket.runs.sweeps.search import CLAIMS, STORAGE, RowSearch, StoredTrials, search_study
from hocket.runs.sweeps.space import Choice, Interval, parse_space, with_values
from unit.runs.sweeps.in_process import pretend_runs, run_here

SPACE = {
    "learning_rate": {"low": 0.001, "high": 1.0, "log": True},
    "method.shrink": {"low": 0.2, "high": 0.8},
    "batch_size": {"low": 8, "high": 16},
    "clip": ["none", "1.0"],
}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Run in this process, with samplers that choose the same values in each test run."""
    seeds, sampler = itertools.count(), optuna.samplers.TPESampler
    monkeypatch.setattr(
        "optuna.samplers.TPESampler", lambda **options: sampler(seed=next(seeds), **options)
    )
    return run_here(monkeypatch)


def study(**values):
    given = {
        "base": {"network": "mlp:hidden=[4]", "data": "synthetic:shape=[8]", "epochs": 1},
        "grid": {"method": "fdg+predict", "stages": 2},
        "search": SPACE,
        "jobs": 1,
        "target": "test_loss <= 1",
    }
    return Study(name="tiny", **(given | values))


def distance(config):
    """Distance of a run from the best learning rate, 0.03."""
    return abs(math.log10(float(Named.parse(config.optimizer).options["lr"]) / 0.03))


def run(chosen, trials, folder):
    return search_study(chosen, trials, folder, progress=False)


def test_values_of_the_ranges_are_tried_and_the_best_is_reported(tmp_path, monkeypatch, here):
    tried = []

    def metrics(config):
        tried.append(config)
        return distance(config)

    pretend_runs(monkeypatch, metrics)
    record = run(study(), 12, tmp_path)
    assert here.started == len(tried) == 12
    for config in tried:
        method, _, remedies = config.method.partition("+")
        assert remedies == "predict"
        assert 0.2 <= Named.parse(method).options["shrink"] <= 0.8
        assert 8 <= config.batch_size <= 16
        assert config.clip in ("none", "1.0")
    (row,) = record.rows
    best = row["trials"][row["best"]]
    assert best["value"] == min(map(distance, tried))
    text = (tmp_path / "SEARCH.md").read_text()
    assert f"| {best['value']:.4f} | `hocket train --method fdg:shrink=" in text
    assert json.loads((tmp_path / "search.json").read_text()) == record.values


def test_a_second_call_goes_on_to_the_number_it_is_given(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, distance)
    first = run(study(), 3, tmp_path).rows
    assert run(study(), 3, tmp_path).rows == first
    assert here.started == 3
    later = run(study(), 5, tmp_path).rows
    assert here.started == 5
    assert later[0]["trials"][:3] == first[0]["trials"]


def test_without_ranges_the_learning_rate_is_tried_within_the_grid(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, distance)
    grid = [{"method": "bp"}, {"method": "fdg", "learning_rates": [0.3, 0.5]}]
    chosen = study(search={}, grid=grid, learning_rates=[0.01, 0.1, 0.02])
    rows = run(chosen, 3, tmp_path).rows
    for row, (low, high) in zip(rows, [(0.01, 0.1), (0.3, 0.5)], strict=True):
        rates = [trial["values"]["learning_rate"] for trial in row["trials"]]
        assert len(set(rates)) == 3
        assert all(low <= rate <= high for rate in rates)


def test_an_abandoned_trial_is_continued_unless_another_process_works_on_it(
    tmp_path, monkeypatch, here
):
    """Of two trials that have begun, one is claimed by another process."""
    pretend_runs(monkeypatch, distance)
    (tmp_path / "runs").mkdir()
    chosen = study()
    row = RowSearch(chosen, chosen.rows[0], tmp_path, StoredTrials(tmp_path / STORAGE))
    (_, abandoned), (_, claimed) = row.ask(), row.ask()
    (tmp_path / CLAIMS / claimed.name).mkdir(parents=True)
    with lock_run_dir(tmp_path / CLAIMS / claimed.name):
        states = [each["state"] for each in run(chosen, 2, tmp_path).rows[0]["trials"]]
        assert states == ["complete", "running"]
        assert (tmp_path / "runs" / abandoned.name / "result.json").exists()
        assert here.started == 1
    assert all(
        each["state"] == "complete" for each in run(chosen, 2, tmp_path).rows[0]["trials"]
    )
    assert here.started == 2


def test_the_same_values_are_trained_once(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, lambda config: float(config.batch_size))
    record = run(study(search={"batch_size": [8, 16]}), 6, tmp_path)
    assert here.started == 2
    assert {trial["value"] for trial in record.rows[0]["trials"]} == {8.0, 16.0}


def test_a_trial_whose_process_was_killed_while_it_chose_is_no_trial(
    tmp_path, monkeypatch, here
):
    pretend_runs(monkeypatch, distance)
    (tmp_path / "runs").mkdir()
    chosen = study()
    row = RowSearch(chosen, chosen.rows[0], tmp_path, StoredTrials(tmp_path / STORAGE))
    row._stored.ask().suggest_float("learning_rate", 0.001, 1.0, log=True)
    trials = run(chosen, 2, tmp_path).rows[0]["trials"]
    assert [each["number"] for each in trials] == [1, 2]
    assert all(each["values"].keys() == SPACE.keys() for each in trials)
    assert here.started == 2


def test_values_that_exclude_each_other_are_no_trial(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, lambda config: config.warmup_factor)
    ranges = {"warmup_epochs": [0, 2], "warmup_factor": [0.1, 0.2, 0.3]}
    chosen = study(search=ranges)  # without a warm-up only 0.1, the default, is possible
    row = RowSearch(chosen, chosen.rows[0], tmp_path, StoredTrials(tmp_path / STORAGE))
    impossible = {"warmup_epochs": 0, "warmup_factor": 0.3}
    row._stored.enqueue_trial(impossible)
    for trials in (8, 12):
        (found,) = run(chosen, trials, tmp_path).rows
        values = [trial["values"] for trial in found["trials"]]
        assert len(values) == trials
        assert {(v["warmup_epochs"], v["warmup_factor"]) for v in values} <= {
            *((2, factor) for factor in ranges["warmup_factor"]),
            (0, 0.1),
        }
    drawn = [trial.value for trial in row._stored.get_trials()]
    assert row.count == len(drawn) - drawn.count(math.inf) == 12
    assert drawn[0] == math.inf
    row._stored.enqueue_trial(impossible)
    monkeypatch.setattr(search_module, "DRAWS", 1)
    with pytest.raises(OptionError, match=r"(?s)1 choices of values .* has no effect without"):
        row.ask()


def test_trials_with_another_objective_are_others(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, distance)
    run(study(), 2, tmp_path)
    changed = study(target=None, select="test_error", seeds=[7])
    values = [each["value"] for each in run(changed, 2, tmp_path).rows[0]["trials"]]
    assert here.started == 4
    assert all(value < 0.3 for value in values)  # errors are a tenth of the losses


def test_trials_with_held_out_examples_are_others(tmp_path, monkeypatch, here):
    held_out = []

    def loss(config):
        held_out.append(config.hold_out)
        return distance(config)

    pretend_runs(monkeypatch, loss)
    run(study(), 2, tmp_path)
    assert "held out" not in (tmp_path / "SEARCH.md").read_text()
    run(study(hold_out_for_sweep=0.25), 2, tmp_path)
    assert held_out == [0, 0, 0.25, 0.25]
    text = (tmp_path / "SEARCH.md").read_text()
    assert "of 0.25 of the training examples, which were held out" in text


def test_another_row_leaves_the_trials_of_the_first_one(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, distance)
    run(study(), 2, tmp_path)
    more = study(grid={"method": ["fdg+predict", "fdg"], "stages": 2})
    rows = run(more, 2, tmp_path).rows
    assert here.started == 4
    assert [len(row["trials"]) for row in rows] == [2, 2]


def test_a_sweep_and_a_search_have_the_folder_in_turn(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, distance)
    with lock_run_dir(tmp_path), pytest.raises(RunFolderError, match="in use by process"):
        run(study(), 1, tmp_path)
    with lock_run_dir(tmp_path, shared=True):
        run(study(), 1, tmp_path)
        with pytest.raises(RunFolderError, match="in use by a process that shares it"):
            hocket.sweep(study(), tmp_path, progress=False)
    assert hocket.sweep(study(), tmp_path, progress=False).orphans == ()


def test_whole_numbers_are_ends_of_a_range_of_rates(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, distance)
    assert parse_space({"learning_rate": {"low": 1, "high": 3}}) == {
        "learning_rate": Interval(1.0, 3.0)
    }
    (row,) = run(study(search={}, learning_rates=[1, 3]), 2, tmp_path).rows
    assert not any(each["values"]["learning_rate"].is_integer() for each in row["trials"])


def test_an_option_is_that_of_the_optimizer_that_is_chosen():
    values = {
        "learning_rate": 0.5,
        "optimizer.weight_decay": 0.25,
        "optimizer": "AdamW:lr=0.001",
        "method.shrink": 0.5,
        "method": "fdg",
    }
    assert with_values({"optimizer": "SGD:lr=0.1"}, values) == {
        "optimizer": "AdamW:lr=0.5,weight_decay=0.25",
        "method": "fdg:shrink=0.5",
    }


def test_divergence_is_a_result_and_a_failure_is_none(tmp_path, monkeypatch):
    ends = iter([math.nan, None, 0.5])
    pretend_runs(monkeypatch, lambda config: next(ends))
    (row,) = run(study(), 3, tmp_path).rows
    assert [each["state"] for each in row["trials"]] == ["diverged", "fail", "complete"]
    assert row["best"] == 2
    text = (tmp_path / "SEARCH.md").read_text()
    assert "| diverged: loss is nan | - |" in text
    assert "| fail: no luck | - |" in text
    pretend_runs(monkeypatch, lambda config: math.inf)
    (row,) = run(study(), 1, tmp_path / "other").rows
    assert row["best"] is None
    assert "| fdg+predict, stages 2 | 1 | - | - |" in (tmp_path / "other/SEARCH.md").read_text()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"learning_rte": [1]}, "unknown option of a search 'learning_rte' (did you mean 'lea"),
        ({"epochs.x": [1]}, "unknown option of a search 'epochs.x'"),
        ({"method.": [1]}, "'method.' names no option; write method.option"),
        ({"clip": []}, "clip is an empty list; give at least one value"),
        ({"clip": 1}, "clip is 1; wanted a list of values, or {low = 0.01, high = 1.0}"),
        ({"clip": {"low": 1, "height": 2}}, "clip is {'low': 1, 'height': 2}; wanted a list"),
        ({"clip": {"low": "1", "high": 2}}, "clip: low is '1'; wanted a finite number"),
        ({"epochs": {"low": 2, "high": 1}}, "epochs has low 2 and high 1; swap them"),
        (
            {"epochs": {"low": 0, "high": 1, "log": True}},
            "epochs has low 0; with log it must be above 0",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_ranges_that_are_none_are_refused(space, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        parse_space(space)
    with pytest.raises(OptionError, match=re.escape(f"search: {said}")):
        study(search=space)


def test_all_that_is_wrong_with_a_search_is_told_at_once():
    space = {"seed": [1], "stages": [2], "clip": 1}
    with pytest.raises(OptionError) as refused:
        study(search=space)
    for part in ("list seeds under the key", "stages is in the grid as well", "clip is 1"):
        assert part in str(refused.value)
    with pytest.raises(OptionError, match=r"shrink is 1\.5; use a number in"):
        study(search={"method.shrink": {"low": 0.5, "high": 1.5}})
    with pytest.raises(OptionError, match="epochs is 0; use a number of at least 1"):
        study(search={"epochs": {"low": 0, "high": 3}})
    with pytest.raises(OptionError, match=r"(?s)unknown optimizer 'SGDD'.*codec 'int9'"):
        study(search={"optimizer": ["SGDD:lr=0.1"], "codec": ["int9"]})


def test_what_cannot_be_searched_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"'fdg\+predict, stages 2' has nothing to search;"):
        run(study(search={}), 2, tmp_path)
    with pytest.raises(OptionError, match="search is 0; give the number of trials of each row"):
        run(study(), 0, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot make '.*file/x': Not a directory"):
        run(study(), 2, tmp_path / "file" / "x")


def test_values_take_their_places():
    options = {"method": "fdg:shrink=0.5", "optimizer": "SGD:lr=0.1"}
    values = {"optimizer.momentum": 0.123456789, "learning_rate": 0.0001, "stages": 3}
    assert with_values(options, values) == {
        "method": "fdg:shrink=0.5",
        "optimizer": "SGD:lr=0.0001,momentum=0.123456789",
        "stages": 3,
    }


def test_numbers_that_are_drawn_have_few_digits_and_those_of_a_list_are_as_they_are():
    drawn = Interval(0.0, 0.9999999)
    assert [drawn.rounded(x) for x in (0.123456789, 0.9999998)] == [0.123457, 0.9999999]
    assert (Interval(1, 9).rounded(7), Choice((0.123456789,)).rounded(0.123456789)) == (
        7, 0.123456789,
    )  # fmt: skip


def test_the_space_of_a_search_is_read_from_a_table():
    assert parse_space(SPACE)["clip"] == Choice(("none", "1.0"))
    assert parse_space(SPACE)["batch_size"] == Interval(8, 16)
