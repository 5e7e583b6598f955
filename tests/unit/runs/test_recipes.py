"""Recipes are complete configurations: everything that they name exists."""

import pytest
import torch

from hocket import zoo
from hocket.data import DATA
from hocket.methods import parse_method
from hocket.options import Named
from hocket.runs.build import (
    build_optimizer_factory,
    build_plan,
    build_scheduler_factory,
    parse_stage_speeds,
)
from hocket.runs.config import parse_config
from hocket.runs.recipes import RECIPES, recipe


@pytest.mark.parametrize("name", RECIPES)
def test_everything_a_recipe_names_exists(name):
    run = parse_config(recipe(name), name)
    assert Named.parse(run.network).name in zoo.NETWORKS
    assert Named.parse(run.data).name in DATA
    parse_method(run.method)
    build_plan(run)
    build_optimizer_factory(run)
    build_scheduler_factory(run)
    assert parse_stage_speeds(run) is None or len(parse_stage_speeds(run)) == run.stages


def test_a_recipe_is_a_copy():
    recipe("fdg-cifar")["epochs"] = 1
    assert recipe("fdg-cifar")["epochs"] == 300


def test_the_settings_of_the_fdg_paper():
    run = parse_config(recipe("fdg-cifar-warmup"), "recipe")
    assert (run.epochs, run.batch_size) == (300, 128)
    wanted = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005}
    assert Named.parse(run.optimizer).options == wanted
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    scheduler, rates = build_scheduler_factory(run)(optimizer), []
    for _ in range(300):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    wanted = [0.01] * 3 + [0.1] * 147 + [0.01] * 75 + [0.001] * 50 + [0.0001] * 25
    assert rates == pytest.approx(wanted)
