"""Predictions are outputs of the network, in any process; metrics are over all samples."""

import re
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from contract.processes import in_processes
from contract.small import Network, data, different, mlp, sgd
from hocket import Trainer
from hocket.errors import DataError, HocketError, OptionError
from unit.partition.networks import Skips

BATCHES = data(mlp, 3)


class Pair(nn.Module):
    """Network with outputs of several tensors, in a mapping as of transformers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x):
        hidden = self.first(x).relu()
        return OrderedDict(scores=self.second(hidden), hidden=[hidden, 7])


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("form", ["pairs", "inputs", "lists", "no targets"])
def test_predictions_are_the_outputs_of_the_network_in_order(stages, form):
    trainer = Trainer(nn.Sequential(*mlp(stages, dropout=0.5)), optimizer=sgd, stages=stages)
    trainer.fit(BATCHES, epochs=1, progress=False)
    make = {
        "pairs": lambda x, y: (x, y),
        "inputs": lambda x, y: x,
        "lists": lambda x, y: [x],
        "no targets": lambda x, y: (x, None),
    }
    before = trainer.state_dict()
    outputs = trainer.predict([make[form](*batch) for batch in BATCHES])
    network = trainer.network.eval()
    assert different(outputs, [network(x) for x, _ in BATCHES]) == []
    assert not any(output.requires_grad for output in outputs)
    assert different(before.values(), trainer.state_dict().values()) == []


def test_rows_of_a_tensor_are_no_batches():
    with pytest.raises(DataError, match=r"a tensor of shape \(6, 5\), .*\[x\] for"):
        Trainer(mlp(1), optimizer=sgd).predict(torch.zeros(6, 5).double())
    assert Trainer(mlp(1), optimizer=sgd).predict([]) == []


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("when", ["after each epoch", "every 2 updates", "by the user"])
def test_training_data_that_are_also_evaluated_are_served_as_without(when, workers):
    kind = {"num_workers": workers, "persistent_workers": workers > 0}

    def fitted(when=None):
        rows = TensorDataset(*(torch.cat(each) for each in zip(*BATCHES, strict=True)))
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(rows, batch_size=4, shuffle=True, generator=generator, **kind)
        trainer = Trainer(mlp(2), optimizer=sgd)
        options = {
            None: {},
            "after each epoch": {"validation": loader},
            "every 2 updates": {"validation": loader, "evaluate_every": 2},
            "by the user": {
                "validation": BATCHES,
                "evaluate_every": 2,
                "on_evaluation": lambda *_: trainer.evaluate(loader),
            },
        }
        trainer.fit(loader, epochs=3, progress=False, **options[when])
        return trainer.state_dict().values()

    assert different(fitted(when), fitted()) == []


@pytest.mark.parametrize("method", ["fdg", "dgl", "dni"])
def test_the_callers_inference_mode_changes_no_bit_of_a_training(method):
    batches, states = [(x.float()[:, :4], y) for x, y in BATCHES], []
    for infers in (False, True):
        torch.manual_seed(0)
        trainer = Trainer(Skips(), stages=2, method=method, optimizer=sgd)
        with torch.inference_mode(infers):
            trainer.prepare(batches[0][0])
            trainer.evaluate(batches)
        trainer.fit(batches, epochs=1, progress=False)
        states.append(trainer.state_dict().values())
    assert different(*states) == []


def predicted():
    """What a process gets when it predicts among others, with metrics of one's own."""
    stages = mlp(2)
    accuracy = MulticlassAccuracy(3, average="micro")
    metrics = {
        "mean": lambda output, targets: output.mean(),
        "accuracy": accuracy,
        "wrong": 1 - accuracy.clone(),  # which holds another metric
    }
    with Trainer(stages, optimizer=sgd, metrics=metrics) as trainer:
        result = trainer.evaluate(BATCHES)
        left = {
            "outputs": trainer.predict(BATCHES),
            "metrics": result.metrics,
            "error": result.error,
        }
    torch.manual_seed(0)
    with Trainer(Pair(), optimizer=sgd, stages=2) as trainer:
        (left["mapping"],) = trainer.predict([{"x": BATCHES[0][0]}])
    return left


def test_every_process_gets_all_of_it():
    alone = Trainer(mlp(2), optimizer=sgd)
    outputs = alone.predict(BATCHES)
    torch.manual_seed(0)
    scores = Pair()(BATCHES[0][0])["scores"]
    for left in in_processes(predicted, processes=2):
        assert different(left["outputs"], outputs) == []
        assert torch.equal(left["mapping"]["scores"], scores)
        assert left["mapping"]["hidden"][1] == 7
        mean = float(torch.cat(outputs).mean())
        wrong = left["error"]
        assert left["metrics"] == pytest.approx(
            {"mean": mean, "accuracy": 1 - wrong, "wrong": wrong}
        )


def told_of_nothing():
    """What a process is told that evaluates on no batches among others."""
    with pytest.raises(HocketError) as caught, Trainer(mlp(2), optimizer=sgd) as trainer:
        trainer.evaluate([])
    return str(caught.value)


def test_a_first_evaluation_on_nothing_is_refused_in_every_process():
    for said in in_processes(told_of_nothing, processes=2):
        assert "there are no batches" in said


def binary(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs.flatten(), targets.double())


def test_a_single_score_has_a_loss_of_all_samples_and_no_error():
    """A metric that edits what it is given changes no loss."""

    def edit(outputs, targets):
        outputs.zero_()
        return 0.0

    network = nn.Linear(5, 1).double()
    batches = [(torch.randn(4, 5).double(), torch.tensor([0, 1, 1, 1])) for _ in range(3)]
    options = {"stages": 1, "method": "bp", "optimizer": sgd, "loss": binary}
    result = Trainer(network, metrics={"edit": edit}, **options).evaluate(batches)
    expected = torch.stack([binary(network(x), y) for x, y in batches]).mean()
    assert result.error is None
    assert result.loss == pytest.approx(expected.item())


BOXES = [
    (torch.zeros(2, 5).double(), {"boxes": [torch.zeros(50, 3), torch.zeros(1, 3)]}),
    (torch.zeros(2, 5).double(), {"boxes": [torch.full((1, 3), 10.0)] * 2}),
]


def distance_to_boxes(output, targets):
    pairs = zip(output, targets["boxes"], strict=True)
    return torch.stack([(o - boxes.mean(0)).abs().mean() for o, boxes in pairs]).mean()


def test_images_count_the_same_however_many_boxes_they_have():
    trainer = Trainer(mlp(2), optimizer=sgd, loss=distance_to_boxes)
    found = trainer.evaluate(BOXES)
    (epoch,) = trainer.fit(BOXES, epochs=1, progress=False)
    each = [trainer.evaluate([batch]).loss for batch in BOXES]
    assert found.samples == epoch.samples == 4
    assert trainer.evaluate(BOXES).loss == pytest.approx(sum(each) / 2)


class Denoising(Network):
    """A network whose forward returns its loss, as diffusion models do."""

    def forward(self, inputs):
        return (self.last(self.first(inputs).tanh()) - inputs).square().mean()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_network_that_returns_its_loss_is_evaluated_without_targets(stages):
    """Batches weigh as much as they have inputs."""
    torch.manual_seed(0)
    network = Denoising(first=nn.Linear(4, 4), last=nn.Linear(4, 4))
    inputs = torch.randn(5, 4)
    trainer = Trainer(network, stages=stages, loss=lambda output, _: output, optimizer=sgd)
    result = trainer.evaluate([(inputs[:2], None), (inputs[2:], None)])
    assert result.samples == 5
    assert result.loss == pytest.approx(network(inputs).item(), rel=1e-5)


# Metrics of the user's own.

UNEVEN = [*data(mlp, 2), *[(x[:1], y[:1]) for x, y in data(mlp, 1)]]


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
        result = trainer.evaluate(UNEVEN)
        assert result.metrics == pytest.approx(dict.fromkeys(metrics, result.error))
        assert len(gathered.kept) == len(UNEVEN)
    assert gathered.distributed_available_fn is gathered.asked
    history = trainer.fit(UNEVEN, UNEVEN, epochs=2, progress=False)
    assert [epoch.evaluation.metrics["wrong"] for epoch in history] == pytest.approx(
        [epoch.evaluation.error for epoch in history]
    )
    assert Trainer(mlp(2), optimizer=sgd).evaluate(UNEVEN).metrics == {}


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
    result = Trainer(mlp(2), optimizer=sgd, metrics=metrics).evaluate(UNEVEN)
    assert result.metrics[name] == pytest.approx(1 - result.error)


def test_what_is_no_metric_or_has_a_name_that_is_taken_or_no_text_is_refused():
    taken = ("loss", "train_loss", "test_error")
    metrics = dict.fromkeys(taken, wrong) | {"f1": 3, "all": Gathered, 1: wrong}
    with pytest.raises(OptionError) as caught:
        Trainer(mlp(1), optimizer=sgd, metrics=metrics)
    said = str(caught.value)
    for name in taken:
        assert f"the name {name!r} is another result; choose another one" in said
    assert "'f1' is 3; give a function of outputs and targets, or an" in said
    assert "'all' is <class" in said
    assert "the name 1 is no text" in said


@pytest.mark.parametrize(
    "value", [torch.ones(2), None, "high"], ids=["two numbers", "nothing", "text"]
)
def test_a_value_that_is_not_one_number_is_refused(value):
    trainer = Trainer(mlp(1), optimizer=sgd, metrics={"own": lambda output, targets: value})
    said = f"metric 'own' is {value!r}; wanted one number, such as a mean"
    with pytest.raises(DataError, match=re.escape(said)):
        trainer.evaluate(UNEVEN)
    late = Gathered()
    late.compute = lambda: value
    with pytest.raises(DataError, match=re.escape(said)):
        Trainer(mlp(1), optimizer=sgd, metrics={"own": late}).evaluate(UNEVEN)
