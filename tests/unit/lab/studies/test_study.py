"""Studies: one error lists all problems, before anything runs."""

import tomllib
from unittest.mock import Mock

import pytest

import hocket
from hocket.errors import OptionError
from hocket_lab import Study
from hocket_lab.studies import study as study_module
from hocket_lab.studies.record import study_command
from hocket_lab.studies.target import Target

BP = {"method": "bp", "stages": 1}
MANY = dict.fromkeys(("epochs", "batch_size"), tuple(range(1, 1001)))


def write(folder, text):
    file = folder / "study.toml"
    file.write_text(text)
    return file


def test_a_file_and_python_give_the_same_study(tmp_path):
    text = """
    learning_rates = [0.1, 0.2]
    seeds = [0, 1, 2]
    seeds_for_sweep = [0]
    target = "test_error <= 0.5"
    jobs = 2

    [base]
    epochs = 1

    [[grid]]
    method = "bp"
    stages = 1

    [[grid]]
    method = ["fdg", "adl:accumulate=4"]
    stages = [2, 4]
    learning_rates = [0.3]
    """
    study = Study(name="study", **tomllib.loads(text))
    assert Study.read(write(tmp_path, text)) == study
    assert (study.sweep_seeds, study.later_seeds, study.metric) == ((0,), (1, 2), "test_error")
    assert len(study.runs()) == (2 + 4) * 3


def test_a_study_does_not_change_with_the_tables_that_it_was_made_of():
    base, grid = {"epochs": 1}, {"method": ["bp"]}
    study = Study(name="study", base=base, grid=grid)
    base["epochs"], grid["method"][0] = 2, "fdg"
    assert [(run.title, run.config.epochs) for run in study.runs()] == [("bp, seed 0", 1)]


def test_changes_replace_keys_and_single_options_and_are_part_of_the_command(tmp_path):
    """The file may begin with a mark of its encoding."""
    text = "\ufeffjobs = 1\nbase = {epochs = 1, data = 'text'}\ngrid = {method = 'fdg'}"
    file, base = write(tmp_path, text), {"data_dir": str(tmp_path)}
    study = Study.read(file, jobs=3, base=base | {"epochs": 2})
    assert (study.jobs, study.base) == (3, {"epochs": 2, "data": "text"} | base)
    assert study_command(study) == "hocket_lab.sweep(study)"
    assert study_command(Study.read(file, seeds=[1], base=base)) == "hocket_lab.sweep(study)"
    same = Study.read(file, jobs=3, base=base)
    assert study_command(same) == f"hocket sweep {file.name} --data-dir DIR"


def test_one_error_lists_all_problems_of_a_file(tmp_path):
    text = """
    sedes = [1]
    seeds = [0, 0]
    seeds_for_sweep = [3]
    learning_rates = [0.1, -1]
    target = "test_los <= 1.9"
    select = "acc"
    jobs = -1

    [base]
    epoch = 3
    seed = 3

    lr = 0.1

    [grid]
    shrink = [0.5, 1.0]
    "method.order" = ["forward-first"]
    method = ["fgd", "bp", "fdg:shrnk=1"]
    stages = [2, "a"]
    plan = []
    """
    with pytest.raises(OptionError) as caught:
        Study.read(write(tmp_path, text))
    for problem in (
        "unknown key 'sedes' (did you mean 'seeds'?)",
        "seeds has 0 twice; list each seed once",
        "seeds_for_sweep has 3, which is none of the seeds",
        "learning_rates has -1; use a number above 0",
        "unknown metric 'test_los'",
        "select: unknown metric 'acc'",
        "jobs is -1; give at least 1, or 0",
        "base: unknown option 'epoch' (did you mean 'epochs'?)",
        "base: seed does not belong there: list seeds under the key 'seeds'",
        "grid: stages is 'a'; wanted a whole number",
        "grid: plan is an empty list; give at least one value",
        'base: lr is no option: write optimizer = "SGD:lr=0.1", or learning_rates = [0',
        'grid: shrink is no option: write it behind the method, as in method = ["fdg:shrink',
        'grid: method.order is no option: write it behind the method, as in method = ["fdg:o',
        "row 'fgd': unknown method 'fgd' (did you mean 'fdg'",
        "unknown option 'shrnk'",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "grid is empty"),
        ({"grid": "bp"}, "grid is empty"),
        ({"grid": [{"learning_rates": [0.1]}]}, "grid is empty"),
        ({"grid": BP, "base": "bp"}, "base is 'bp'; wanted a table of options"),
        ({"grid": BP, "seeds": []}, "seeds is empty"),
        ({"grid": BP, "seeds": [-1]}, r"seeds has -1; use a number in \[0, "),
        ({"grid": BP, "seeds": "all"}, "seeds is 'all'; wanted a list, each a whole number"),
        ({"grid": BP, "learning_rates": [1, 1]}, "learning_rates has 1 twice"),
        ({"grid": BP | {"stages": ()}}, "grid: stages is an empty list"),
        ({"grid": BP | {"learning_rates": ["a"]}}, "grid: learning_rates is .*'a'.*; wanted"),
        ({"grid": BP, "seeds_for_sweep": [0]}, "no effect without learning_rates"),
        ({"grid": BP, "hold_out_for_sweep": 0.1}, "hold_out_for_sweep has no effect without"),
        ({"grid": BP, "hold_out_for_sweep": 1.5}, r"hold_out_for_sweep is 1.5; use a number"),
        (
            {"grid": BP | {"hold_out": 0.2}, "hold_out_for_sweep": 0.1, "learning_rates": [1]},
            "hold_out_for_sweep is 0.1 and hold_out is given",
        ),
        ({"grid": BP, "base": {"run_dir": "x"}}, "run_dir does not belong there: each run"),
        ({"grid": [BP, BP]}, "row 'bp, stages 1': it has the same runs as row 'bp, stages 1'"),
        ({"grid": BP | {"batch_size": 0, "method": "pb"}}, "(?s)batch_size is 0.*method 'pb'"),
        ({"grid": BP | {"data": "text", "data_dir": "no"}}, "data_dir is 'no', which does not"),
        ({"grid": BP | {"data": "text", "data_dir": "x" * 300}}, "data_dir is 'xxx.*closed"),
        ({"grid": BP | {"plan": "a,b"}}, "makes 3 stages, but stages is 1"),
        ({"grid": BP, "base": {"clip": "much"}}, "clip is 'much'; use a norm"),
        ({"grid": BP, "name": ""}, "name is ''; give one that can be the name of a folder"),
        ({"grid": BP, "name": "../x"}, "name is '../x'; give one that can be"),
        ({"base": {"method": hocket.FDG(shrink=0.5)}}, 'base: .*"fdg:shrink='),
        ({"grid": {"method": hocket.FDG(shrink=0.5)}}, 'grid: .*"fdg:shrink='),
        ({"grid": MANY | {"learning_rates": []}, "seeds": [0, 1]}, "2000000 runs"),
        ({"grid": MANY, "seeds": []}, "1000000 runs"),
    ],
)
def test_an_impossible_study_is_refused(values, message):
    with pytest.raises(OptionError, match=message):
        Study(**({"name": "study"} | values))


def test_a_file_does_not_run_code_alone_and_its_command_allows_the_code(tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text("raise SystemExit('it ran')")
    own = f"{nets}:small"
    base = f"base = {{data = 'text', data_dir = '{tmp_path}'}}"
    file = write(tmp_path, f"name = 'A title'\n{base}\ngrid = {{network = '{own}'}}")
    for allowed in ([], ["mlp"]):
        with pytest.raises(
            OptionError, match=r"it runs .*small for network .*give --network .*nets\.py"
        ):
            Study.read(file, own_code={"network": allowed})
    nets.write_text("def small(num_classes, in_features): ...")
    study = Study.read(file, own_code={"network": own})
    assert study_command(study) == f"hocket sweep study.toml --data-dir DIR --network {own}"
    assert (study.grid, "file" in study.as_dict()) == ({"network": own}, False)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("jobs = \n", {}, "is not TOML: .*line 1"),
        ("#" * 2**20 + "#", {}, "is longer than the 1048576 bytes"),
        (None, {}, "cannot read the study .*No such file"),
        (
            "grid = {data = 'text', data_dir = '.'}",
            {"base": {"data_dir": "."}, "jobs": -1},
            "(?s)jobs is -1.*data_dir is given, but the grid has its own",
        ),
        (
            "grid = {method = 'fdg', network = ['mlp', 'mlp:hidden=[8]']}",
            {"own_code": {"network": ["nets.py:small"]}, "jobs": -1},
            "(?s)jobs is -1.*names no such function of a file; drop --network",
        ),
    ],
    ids=["syntax", "length", "missing", "place of the data", "permission"],
)
def test_a_file_that_is_no_study_is_refused(tmp_path, text, options, message):
    file = tmp_path / "study.toml" if text is None else write(tmp_path, text)
    with pytest.raises(OptionError, match=message):
        Study.read(file, **options)


def test_the_rows_of_a_file_are_checked_once(tmp_path, monkeypatch):
    checked = Mock(wraps=study_module.study_problems)
    monkeypatch.setattr(study_module, "study_problems", checked)
    Study.read(write(tmp_path, "grid = {method = ['bp', 'fdg']}"))
    assert checked.call_count == 1


def test_a_text_that_is_no_target_is_refused():
    for text, message in (
        ("soon", "target is 'soon'; write it like 'test_loss <= 1.90'"),
        ("test_los <= 1", "target: unknown metric 'test_los' .did you mean 'test_loss'"),
        ("test_loss >= 1", "less is better for test_loss"),
        ("test_loss <= low", "wanted a finite number, not 'low'"),
        ("test_loss <= inf", "wanted a finite number, not 'inf'"),
        ("test_error <= 10", r"use a share in \[0, 1\): 10 % are 'test_error"),
        ("test_error <= -0.1", r"use a share in \[0, 1\)"),
    ):
        with pytest.raises(OptionError, match=message):
            Target.parse(text)
