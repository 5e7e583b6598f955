"""Habits from other libraries meet a clear error, and a trainer describes itself."""

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Plan, Trainer
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.runs.build import build_optimizer_factory
from hocket.runs.config import RunConfig
from hocket.runs.resolve import parse_trackers
from hocket.training.callback import Callback


class Nothing(torch.optim.SGD):
    """Optimizer that finds its rate itself, as Adafactor of transformers does."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        for group in self.param_groups:
            group["lr"] = None


def of_inference():
    with torch.inference_mode():
        return mlp(2)


def prepared(network=None, **options):
    trainer = Trainer(network or mlp(2), **({"optimizer": sgd} | options))
    trainer.prepare(data(mlp, 1)[0][0])


REFUSALS = {
    "no rate": (
        lambda: prepared(optimizer=Nothing),
        "Nothing, has weights without a rate 'lr'",
    ),
    "function": (lambda: prepared(lambda x: x, stages=2), "give a module, or a list"),
    "meta": (lambda: prepared(nn.Linear(2, 2, device="meta")), "device is 'meta'"),
    "inference": (lambda: prepared(of_inference()), "built in inference_mode"),
    "callback": (
        lambda: Trainer(mlp(2), optimizer=sgd).fit([], epochs=1, callbacks=[Callback]),
        "Callback'>; give an object of a class",
    ),
    "tensorboard": (lambda: parse_trackers("tensorboard"), "--tensorboard"),
    "SGD": (lambda: build_optimizer_factory(RunConfig(optimizer="SGD")), "SGD:lr=0.05"),
}


@pytest.mark.parametrize(("build", "said"), REFUSALS.values(), ids=REFUSALS.keys())
def test_it_is_refused(build, said):
    with pytest.raises(OptionError) as caught:
        build()
    assert said in str(caught.value)


def test_a_gpu_of_apple_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match="device is 'mps', and PyTorch finds no GPU"):
        Trainer(mlp(2), optimizer=sgd, device="mps")


def test_a_trainer_tells_method_stages_cuts_and_delays():
    network = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    trainer = Trainer(network, stages=Plan(("1",)), method=FDG(), optimizer=sgd)
    trainer.prepare(torch.zeros(2, 6))
    assert repr(trainer) == "<Trainer: fdg, 2 stages, cut at 1, delays 2, 0>"
