"""Parts built from text: the network fits the data, and the text is checked."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hocket import Plan, data, zoo
from hocket.errors import OptionError
from hocket.methods import parse_method
from hocket.options import Named
from hocket.runs.build import (
    KEPT_PLAN,
    build_optimizer_factory,
    build_plan,
    build_scheduler_factory,
    network_builder,
    parse_stage_speeds,
)
from hocket.runs.config import RunConfig, parse_config
from hocket.runs.recipes import RECIPES, recipe
from hocket.runs.train import train

IMPOSSIBLE = "pipedream-2bw:accumulate=1"
DIGITS = data.load("digits", batch_size=32)


def test_a_method_is_refused_on_stages_that_it_is_not_for_before_any_data_are_read():
    config = RunConfig(method=IMPOSSIBLE, stages=4, data="cifar10", data_dir=Path("none"))
    with pytest.raises(OptionError, match=r"on 4 stages: .* use accumulate=3 or more"):
        train(config)


IMAGES = {"shape": [2, 16, 16], "classes": 5, "examples": 4}


@pytest.mark.parametrize(
    ("network", "name", "options", "shape"),
    [
        ("mlp:hidden=[16]", "digits", {}, (2, 10)),
        ("mlp:hidden=[],num_classes=12", "digits", {}, (2, 12)),  # which wins over what fits
        ("resnet8", "synthetic", IMAGES, (2, 5)),
        ("gpt:width=8,heads=2,depth=1", "text", {"context": 8}, (2, 8, 4)),
    ],
    ids=["perceptron", "option", "channels", "vocabulary and context"],
)
def test_a_network_takes_its_data_and_tells_its_classes(
    tmp_path, network, name, options, shape
):
    (tmp_path / "a.txt").write_text("abcd" * 50)
    folder = {"data_dir": tmp_path} if name == "text" else {}
    loaded = data.load(name, batch_size=2, **options, **folder)
    built = network_builder(RunConfig(network=network))(loaded)
    assert built(next(iter(loaded.test))[0]).shape == shape


def test_the_seed_decides_the_weights_and_the_global_generator_stays():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = network_builder(RunConfig(seed=1))(DIGITS).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = network_builder(RunConfig(seed=1))(DIGITS).state_dict()
    other = network_builder(RunConfig(seed=2))(DIGITS).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("choices", "plan"),
    [
        ({"stages": 3}, 3),
        ({"network": "resnet20", "plan": "paper"}, Plan(("layer2_1",))),
        ({"network": "mlp", "plan": "paper", "stages": 1}, Plan(())),
        ({"plan": "a, b", "stages": 3}, Plan(("a", "b"))),
    ],
    ids=["balanced", "paper", "paper, one stage", "names"],
)
def test_a_plan_is_a_number_of_stages_that_of_a_paper_or_names(choices, plan):
    assert build_plan(RunConfig(**choices)) == plan


def test_weight_decay_on_matrices_leaves_out_biases_and_norms():
    build = build_optimizer_factory(
        RunConfig(optimizer="AdamW:weight_decay=0.1", weight_decay_on="matrices")
    )
    network = nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    groups = build(list(network.parameters())).param_groups
    matrices = {id(network[0].weight), id(network[2].weight)}
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {id(p) for p in groups[0]["params"]} == matrices
    assert len(groups[1]["params"]) == 3
    (only,) = build(list(network[1].parameters())).param_groups
    assert only["weight_decay"] == 0


CYCLE = "OneCycleLR:max_lr=0.1,total_steps=100"
MATRICES = {"weight_decay_on": "matrices"}


@pytest.mark.parametrize(
    ("build", "choices", "said"),
    [
        (build_plan, {"plan": "paper"}, "no paper cuts 'mlp'; there are plans for resnet20"),
        (
            build_plan,
            {"network": "resnet56", "plan": "paper", "stages": 7},
            "'resnet56' into 7 stages; there are plans for 2, 3",
        ),
        (build_plan, {"plan": "a,b"}, "plan 'a,b' makes 3 stages, but stages is 2"),
        *(
            (build_optimizer_factory, {"optimizer": optimizer} | more, said)
            for optimizer, more, said in (
                ("Adam:lr=0.01,betas=[0.9]", {}, "(?s)PyTorch refuses.*list index out"),
                ("AdmW", {}, "did you mean 'AdamW'"),
                ("SGD:lr=1,nesterov=maybe", {}, "nesterov is 'maybe'"),
                ("SGD", {}, "SGD:lr=0.05"),
                ("SGD:lrr=1", {}, "(?s)SGD:lrr=1.*argument 'lrr'"),
                ("SGD:lr=-1", {}, "Invalid learning rate"),
                ("Optimizer", {}, "'Optimizer'"),
                ("SGD:lr=0.1", MATRICES, "'SGD:lr=0.1' has no weight_decay"),
                ("Rprop", MATRICES, "'Rprop' has no weight_decay"),
            )
        ),
        *(
            (build_scheduler_factory, {"scheduler": scheduler} | more, said)
            for scheduler, more, said in (
                ("StepLRs:step_size=1", {}, "did you mean"),
                ("StepLR", {}, "'step_size'"),
                ("StepLR:step_size=1,gama=2", {}, "gama"),
                (CYCLE, {"optimizer": "Adagrad:lr=0.01"}, "optimizer must support momentum"),
                (CYCLE, {"optimizer": "SGD:lr=0.1,nestorov=true"}, "'nestorov'"),
            )
        ),
        (lambda run: run, {"label_smoothing": 1.0}, r"label_smoothing is 1.0; .* \[0, 1\)"),
        (parse_stage_speeds, {"stage_speeds": "1,fast"}, "stage_speeds is '1,fast'"),
    ],
)
def test_wrong_choices_are_refused(build, choices, said):
    with pytest.raises(OptionError, match=said):
        build(RunConfig(**choices))


def test_labels_are_smoothed_in_training_and_not_in_evaluations(tmp_path):
    """Both losses are those of the first weights, which an update hardly changes."""
    choices = {"optimizer": "SGD:lr=1e-30", "epochs": 1, "run_dir": tmp_path / "run"}
    run = RunConfig(method="bp", stages=1, label_smoothing=0.3, **choices)
    (epoch,) = train(run).epochs
    network = network_builder(run)(DIGITS)
    for batches, loss, smoothing in (
        (DIGITS.train, epoch.loss, 0.3),
        (DIGITS.test, epoch.evaluation.loss, 0.0),
    ):
        scores, targets = map(
            torch.cat, zip(*[(network(x), y) for x, y in batches], strict=True)
        )
        wanted = F.cross_entropy(scores.detach(), targets, label_smoothing=smoothing)
        assert loss == pytest.approx(float(wanted), rel=1e-5)


def test_stage_speeds_are_numbers_for_each_stage():
    assert parse_stage_speeds(RunConfig()) is None
    assert parse_stage_speeds(RunConfig(stage_speeds="1,0.5, 2")) == (1.0, 0.5, 2.0)
    assert build_scheduler_factory(RunConfig(scheduler=CYCLE)) is not None


def test_cuts_of_a_training_that_goes_on_stay(tmp_path):
    config = RunConfig(stages=3)
    assert build_plan(config, tmp_path) == 3
    kept = Plan(("hidden1", "head"), "a signature")
    kept.write(tmp_path / KEPT_PLAN)
    assert build_plan(config, tmp_path) == kept
    assert build_plan(config) == 3
    assert build_plan(RunConfig(stages=2), tmp_path) == 2
    assert build_plan(RunConfig(stages=2, plan="head"), tmp_path) == Plan(("head",))


def test_a_resumed_run_does_not_balance_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig(epochs=1, network="mlp:hidden=[8,8]", run_dir=Path("run"))
    train(config)
    kept = Plan.read(Path("run") / KEPT_PLAN)
    other = next(cut for cut in ("hidden1", "head") if (cut,) != kept.cuts)
    Plan((other,)).write(Path("run") / KEPT_PLAN)
    summary = train(replace(config, epochs=2), resume=True)
    assert summary.cuts == (other,)


@pytest.mark.parametrize("name", RECIPES)
def test_everything_a_recipe_names_exists(name):
    run = parse_config(recipe(name), name)
    assert Named.parse(run.network).name in zoo.NETWORKS
    assert Named.parse(run.data).name in data.DATA
    parse_method(run.method)
    build_plan(run)
    build_optimizer_factory(run)
    build_scheduler_factory(run)
    assert parse_stage_speeds(run) is None or len(parse_stage_speeds(run)) == run.stages


def test_the_settings_of_the_fdg_paper():
    run = parse_config(recipe("fdg-cifar-warmup"), "recipe")
    recipe("fdg-cifar-warmup")["epochs"] = 1  # of a copy
    assert (run.epochs, run.batch_size) == (300, 128)
    assert parse_config(recipe("fdg-cifar-warmup"), "recipe") == run
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
