"""Rows and runs: all combinations, and an identity that only results depend on."""

import dataclasses

import pytest

from hocket.errors import OptionError
from hocket.runs.config import MAY_CHANGE, RunConfig
from hocket_lab.studies.rows import WITHOUT_EFFECT_ON_RESULTS, Row, expand, with_learning_rate


def name_of(rate=None, seed=0, **options):
    return Row("row", options, ()).run(rate, seed).name


def test_each_table_has_all_combinations_of_its_values_and_tables_follow_each_other():
    tables = [
        {"method": "bp", "stages": 1},
        {"method": ["fdg:shrink=0.5", "ddg"], "stages": [2, 4], "learning_rates": [0.3]},
    ]
    rows = expand({"epochs": 2}, tables, [0.1, 0.2])
    assert [row.label for row in rows] == [
        "bp, stages 1",
        "fdg shrink=0.5, stages 2",
        "fdg shrink=0.5, stages 4",
        "ddg, stages 2",
        "ddg, stages 4",
    ]
    assert rows[0].learning_rates == (0.1, 0.2)
    assert {row.learning_rates for row in rows[1:]} == {(0.3,)}
    assert rows[2].options == {"epochs": 2, "method": "fdg:shrink=0.5", "stages": 4}


def test_a_label_is_never_empty_names_what_differs_and_leaves_out_what_follows():
    rows = expand({"method": "fdg"}, [{"epochs": 2, "batch_size": [8, 16]}], ())
    assert [row.label for row in rows] == ["batch size 8", "batch size 16"]
    tables = [
        {"method": "bp", "stages": 1, "batch_size": 8, "optimizer": ["Adam:lr=0.1", "SGD"]},
        {"plan": "head", "method": "fdg", "stages": 2, "batch_size": [4, 8]},
    ]
    assert [row.label for row in expand({"optimizer": "SGD"}, tables, ())] == [
        "bp, stages 1, batch size 8, optimizer Adam",
        "bp, stages 1, batch size 8, optimizer SGD",
        "fdg, stages 2, batch size 4, optimizer SGD",
        "fdg, stages 2, batch size 8, optimizer SGD",
    ]
    same = [{"method": "bp", "optimizer": ["Adam:lr=0.1", "Adam:lr=0.2"]}]
    assert [row.label for row in expand({}, same, ())] == [
        "optimizer Adam lr=0.1",
        "optimizer Adam lr=0.2",
    ]
    rates = [{"epochs": 1, "learning_rates": [rate]} for rate in (0.1, 0.2)]
    assert [row.label for row in expand({}, rates, ())] == ["epochs 1"] * 2


def test_runs_have_one_thread_and_checkpoints_unless_the_study_says_otherwise():
    config = Row("row", {}, ()).run(None, 3).config
    assert (config.threads, config.checkpoint_every, config.seed) == (1, 500, 3)
    config = Row("row", {"threads": 2, "checkpoint_every": 0}, ()).run(None, 0).config
    assert (config.threads, config.checkpoint_every) == (2, 0)


def test_whatever_changes_results_gives_another_run_and_nothing_else_does():
    same = name_of()
    for changed in ({"seed": 1}, {"rate": 0.1}, {"epochs": 3}, {"method": "bp"}):
        assert name_of(**changed) != same
    assert name_of(method="fdg+t1") != name_of(method="fdg+t1(anneal=3)") != name_of()
    assert name_of(data_dir="a") != same
    assert name_of(checkpoint_every=3) == same
    assert name_of(epochs=RunConfig.epochs) == same
    assert name_of(rate=0.05, optimizer="SGD:momentum=0.9,lr=1") == name_of(
        optimizer="SGD:momentum=0.9,lr=5e-2"
    )
    remedied = "fdg:shrink={}+compensate-adaptive(strength={},decay=0.5)+predict"
    assert name_of(method=remedied.format("5e-1", "1e-1")) == name_of(
        method=remedied.format("0.5", "0.1")
    )
    joined = "ConstantLR:factor={},total_iters=3+LinearLR:start_factor={},total_iters=5"
    assert name_of(scheduler=joined.format("5e-1", "1e-1")) == name_of(
        scheduler=joined.format("0.5", "0.1")
    )
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert fields >= WITHOUT_EFFECT_ON_RESULTS
    assert MAY_CHANGE >= WITHOUT_EFFECT_ON_RESULTS


def test_another_file_of_a_network_or_a_plan_gives_another_run(tmp_path):
    own, plan = tmp_path / "own.py", tmp_path / "plan.json"
    options = {"network": f"{own}:small", "plan": str(plan)}
    names = {name_of(**options)}
    for file, text in ((own, "a = 1"), (own, "a = 2"), (plan, "{}"), (plan, "[]")):
        file.write_text(text)
        names.add(name_of(**options))
        assert name_of(**options) in names
    assert len(names) == 5


def test_a_learning_rate_is_given_to_the_scheduler_that_has_its_own():
    options = {"scheduler": "OneCycleLR:max_lr=0.1,total_steps=10"}
    changed = with_learning_rate(options, 0.2)
    assert changed["scheduler"] == "OneCycleLR:max_lr=0.2,total_steps=10"
    assert changed["optimizer"] == RunConfig.optimizer.replace("lr=0.025", "lr=0.2")
    first = "ConstantLR:total_iters=3+"
    joined = with_learning_rate({"scheduler": first + options["scheduler"]}, 0.2)
    assert joined["scheduler"] == first + changed["scheduler"]
    for scheduler in ("CyclicLR:base_lr=0.1,max_lr=1", first + "CyclicLR:base_lr=0.1,max_lr=1"):
        with pytest.raises(OptionError, match=r"learning_rates have no effect .* 'CyclicLR'"):
            with_learning_rate({"scheduler": scheduler}, 0.2)
