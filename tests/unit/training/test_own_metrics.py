"""Metrics of the user's own are measured on the outputs of the network, over all samples."""

import re

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.errors import DataError, OptionError

BATCHES = [*data(mlp, 2), *[(x[:1], y[:1]) for x, y in data(mlp, 1)]]


class Gathered:
    """Metric that keeps all outputs, and looks as those of torchmetrics do."""

    def __init__(self):
        self.kept = [("of an evaluation", "before")]
        self.distributed_available_fn = self.asked = lambda: True

    def reset(self):
        self.kept = []

    def update(self, output, targets):
        self.kept.append((output, targets))

    def compute(self):
        assert not self.distributed_available_fn()
        outputs, targets = (torch.cat(each) for each in zip(*self.kept, strict=True))
        return (outputs.argmax(1) != targets).double().mean()


def wrong(output, targets):
    return (output.argmax(1) != targets).double().mean()


@pytest.mark.parametrize("stages", [1, 3])
def test_functions_and_objects_agree_with_the_error(stages):
    """Also in the history."""
    metrics = {"wrong": wrong, "gathered": (gathered := Gathered())}
    trainer = Trainer(mlp(stages), optimizer=sgd, metrics=metrics)
    for _ in range(2):
        result = trainer.evaluate(BATCHES)
        assert result.metrics == pytest.approx(dict.fromkeys(metrics, result.error))
        assert len(gathered.kept) == len(BATCHES)
    assert gathered.distributed_available_fn is gathered.asked
    history = trainer.fit(BATCHES, BATCHES, epochs=2, progress=False)
    assert [epoch.evaluation.metrics["wrong"] for epoch in history] == pytest.approx(
        [epoch.evaluation.error for epoch in history]
    )
    assert Trainer(mlp(2), optimizer=sgd).evaluate(BATCHES).metrics == {}


def micro():
    return MulticlassAccuracy(num_classes=3, average="micro")


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("accuracy", {"accuracy": micro()}),
        ("all.micro", {"all": MetricCollection({"micro": micro()})}),
        ("mine", nn.ModuleDict({"mine": micro()})),
    ],
)
def test_metrics_and_collections_of_torchmetrics_are_taken(name, metrics):
    result = Trainer(mlp(2), optimizer=sgd, metrics=metrics).evaluate(BATCHES)
    assert result.metrics[name] == pytest.approx(1 - result.error)


def test_what_is_no_metric_or_has_a_taken_name_is_refused():
    with pytest.raises(OptionError) as caught:
        Trainer(mlp(1), optimizer=sgd, metrics={"loss": wrong, "f1": 3})
    assert "the name 'loss' is that of another result; choose another one" in str(caught.value)
    assert "'f1' is 3; give a function of outputs and targets, or an" in str(caught.value)


@pytest.mark.parametrize(
    "value", [torch.ones(2), None, "high"], ids=["two numbers", "nothing", "text"]
)
def test_a_value_that_is_not_one_number_is_refused(value):
    trainer = Trainer(mlp(1), optimizer=sgd, metrics={"own": lambda output, targets: value})
    said = f"metric 'own' is {value!r}; wanted one number, such as a mean"
    with pytest.raises(DataError, match=re.escape(said)):
        trainer.evaluate(BATCHES)
    late = Gathered()
    late.compute = lambda: value
    with pytest.raises(DataError, match=re.escape(said)):
        Trainer(mlp(1), optimizer=sgd, metrics={"own": late}).evaluate(BATCHES)
