"""All processes of a training were given the same, or the first difference is named in all."""

import re
import tempfile
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn, optim
from torch.optim.lr_scheduler import SequentialLR, StepLR

import hocket
from contract.processes import in_processes
from contract.small import data, skips
from hocket import Plan, Trainer
from hocket.errors import WorldError
from hocket.runs.config import RunConfig
from hocket.runs.train import train
from hocket.training.session import agreement

BATCHES = [(x.float(), y) for x, y in data(skips, 5)]


def build(width=5, p=0.1, seed=0, act=nn.Tanh, frozen=False, unsaved=1.0):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(4, width), act(), nn.Dropout(p), nn.Linear(width, 4), nn.Linear(4, 3)
    )
    network[0].bias.requires_grad_(not frozen)
    network[1].register_buffer("scale", torch.tensor(unsaved), persistent=False)
    return network


def sgd(weights, lr=0.1, **options):
    return optim.SGD(weights, lr=lr, momentum=0.5, **options)


def by_stage(weights, stage, rates=(0.1, 0.1)):
    return sgd(weights, rates[stage])


def steps(optimizer, size=4, gamma=0.1):
    halves = [StepLR(optimizer, size, gamma), StepLR(optimizer, size)]
    return SequentialLR(optimizer, halves, [size])


DIFFERENCES = {
    "method": (dict(method="fdg"), dict(method="ddg"), "name of the method is fdg .* ddg"),
    "option of the method": ({}, dict(method="fdg:shrink=0.5"), "signal of the method"),
    "remedy": (dict(method="ddg"), dict(method="ddg+predict"), "remedies of the method is"),
    "rate": ({}, dict(optimizer=partial(sgd, lr=0.3)), "lr of group 0 .* 0.1 in .* 0.3"),
    "rate of the other stage": (
        dict(optimizer=by_stage),
        dict(optimizer=partial(by_stage, rates=(0.1, 0.2))),
        "lr of group 0 of the optimizer of stage 1 is 0.1 in rank 0, and 0.2 in rank 1",
    ),
    "optimizer": ({}, dict(optimizer=partial(optim.Adam, lr=0.1)), "is SGD in .* Adam in"),
    "groups": (
        {},
        dict(optimizer=lambda ws: sgd([{"params": ws[:1]}, {"params": ws[1:]}])),
        "params of group 0 of the optimizer of stage 0 is 2 in rank 0, and 1 in rank 1",
    ),
    "scheduler": ({}, dict(scheduler=partial(StepLR, step_size=1)), "scheduler of stage 0"),
    "gamma": (dict(scheduler=steps), dict(scheduler=partial(steps, gamma=0.2)), "_sched.*0.2"),
    "clip": ({}, dict(clip=1.0), "clip is "),
    "precision": ({}, dict(precision="bf16"), "precision is fp32 in .*, and bf16 in rank 1"),
    "codec": ({}, dict(codec="bf16"), "codec is"),
    "seed": ({}, dict(seed=3), "seed is 0 in rank 0, and 3 in rank 1"),
    "loss": ({}, dict(loss=nn.CrossEntropyLoss(label_smoothing=0.1)), "loss is cross_entropy"),
    "batches to skip": ({}, dict(skip_batches=[3]), r"skip_batches is \[\] .* \[3\]"),
    "width": ({}, dict(network=build(6)), "layer '0' is .*out_features=5.*out_features=6"),
    "dropout": ({}, dict(network=build(p=0.2)), r"layer '2' is Dropout\(p=0.1.*Dropout\(p=0.2"),
    "activation": ({}, dict(network=build(act=nn.ReLU)), r"layer '1' is Tanh\(\) .* ReLU\(\)"),
    "freezing": ({}, dict(network=build(frozen=True)), r"form of '0.bias' .* \(5,\) \(frozen"),
    "initial weights": ({}, dict(network=build(seed=1)), 'digest .*broadcast="first"'),
    "unsaved buffer": ({}, dict(network=build(unsaved=2.0)), "digest of .* '1.scale'"),
    "plan": (dict(stages=Plan(["3"])), dict(stages=Plan(["4"])), "weights of stage 0 .*--plan"),
    "version": ({}, dict(version="0.0.1"), "version of Hocket is .* 0.0.1 in rank 1"),
    "epochs": ({}, dict(epochs=2), "epochs is 1 in rank 0, and 2 in rank 1"),
    "updates": (dict(epochs=None, updates=4), dict(epochs=None, updates=5), "updates is 4 "),
    "validation": (
        {},
        dict(validation=BATCHES[:2]),
        "validation is not there in .*, and given in",
    ),
    "batches of replicas": (
        dict(stages=1, replicas=2, replica_delay=1),
        dict(stages=1, replicas=2, replica_delay=1, train=BATCHES[:4]),
        "number of batches is 5 in rank 0, and 4 in rank 1",
    ),
    "resume": (dict(call=lambda t: t.resume("")), {}, "rank 0 is loading .* call resume"),
    "save": (
        dict(resumable=True, call=lambda t: t.save("/dev/null/none")),
        dict(resumable=True),
        "rank 0 is writing a checkpoint, rank 1 is calling fit",
    ),
}
"""What rank 0 is given, what rank 1 is given, and what the error says."""


def trained(given):
    """Train as given, over the defaults; return the message of the refusal, and the weights."""
    given = {"network": build(), "optimizer": sgd, "stages": 2, "epochs": 1} | given
    length = {name: given.pop(name, None) for name in ("epochs", "updates", "validation")}
    network, told = given.pop("network"), given.pop("version", hocket.__version__)
    train, call = given.pop("train", BATCHES), given.pop("call", lambda trainer: None)
    trainer, message = Trainer(network, **given), None
    with patch.object(agreement, "__version__", told), trainer:
        try:
            call(trainer)
            trainer.fit(train, progress=False, **length)
        except WorldError as error:
            message = str(error)
    return message, [float(weight.detach().double().sum()) for weight in network.parameters()]


def run(folder, rank):
    """Train as two machines that were given different options; return the refusal."""
    method = ("fdg", "ddg")[rank]
    try:
        train(RunConfig(method=method, epochs=1, run_dir=Path(folder, "run")))
    except WorldError as error:
        return str(error)


def work(folder):
    rank = distributed.get_rank()
    left = {name: trained(pair[rank])[0] for name, pair in DIFFERENCES.items()}
    left["same"], left["weights"] = trained({"scheduler": steps, "clip": 1.0})
    other = {"network": build(seed=rank), "broadcast": "first"}
    left["broadcast"], left["weights of the first"] = trained(other)
    left["run"] = run(folder, rank)
    return left


@cache
def left():
    with tempfile.TemporaryDirectory() as folder:
        return in_processes(work, folder, processes=2)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_between_processes_is_refused_in_all_of_them(name):
    messages = [results[name] for results in left()]
    for message in messages:
        assert re.search(DIFFERENCES[name][2], message)


def test_a_run_has_the_options_of_all_machines():
    for results in left():
        assert "method is fdg in rank 0, and ddg in rank 1" in results["run"]


def test_processes_that_were_given_the_same_train_and_may_take_the_weights_of_the_first():
    expected = trained({"scheduler": steps, "clip": 1.0})[1]
    first = trained({"network": build(seed=0)})[1]
    for results in left():
        assert (results["same"], results["weights"]) == (None, expected)
        assert (results["broadcast"], results["weights of the first"]) == (None, first)
