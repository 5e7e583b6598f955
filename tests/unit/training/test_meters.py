"""Results of epochs and evaluations: means, errors, and what is not counted."""

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer, cross_entropy
from hocket.engine.event import Event
from hocket.errors import DataError, NonFiniteError
from hocket.methods import BP
from hocket.program import Action
from hocket.stage.passes.forward_only import Prediction
from hocket.stage.report import ActionReport
from hocket.training.results import meters
from hocket.training.results.meters import EvaluationMeter, TrainingMeter
from hocket.training.results.own_metrics import OwnMetrics
from hocket.tree import count_batch


def event(kind, stage, epoch=0, **measured):
    return Event(0, Action(kind, stage, 0), ActionReport(epoch, 0, **measured))


def metered(*events):
    meter = TrainingMeter()
    meter.add(events)
    return meter


def result_of(meter, number=0, stages=2, **options):
    return meter.epoch(number, stages, None, seconds=1.0, samples=8, **options)


EVENTS = [
    event("B", 1, loss=torch.tensor(8.0), targets=1),
    event("B", 0, loss=torch.tensor(0.5), targets=9, staleness=1),
    event("B", 1, skipped=True),
    event("B", 1, loss=torch.tensor(2.0), targets=2, staleness=2),
    event("B", 0, skipped=True),
    event("B", 0, skipped=True),
    event("B", 1, 1, loss=torch.tensor(3.0), targets=4, staleness=2),
    event("B", 1, 1, loss=torch.tensor(torch.nan), targets=0),  # the mean of nothing
]


def test_an_epoch_has_the_mean_over_the_targets_of_its_batches_at_the_last_stage():
    results = [result_of(metered(*EVENTS), number) for number in (0, 1)]
    assert [result.loss for result in results] == [4.0, 3.0]
    assert result_of(metered(*EVENTS), 0, all_losses=True).loss == 24 / 7
    assert [(r.staleness, r.skipped) for r in results] == [((1.0, 1.0), (2, 1))] * 2
    assert metered(*EVENTS[:4]).newest_loss(None) == 2.0


def test_what_is_shown_is_the_newest_rate_of_the_first_stage_and_whose_the_loss_is():
    assert metered(*EVENTS).owner(None, last=1) == ""
    assert metered(*EVENTS).owner(0, last=2) == " of stage 1"
    assert metered().owner(None, last=1) == ""
    assert metered().newest_lr is None
    rates = [(1, 0.3), (0, 0.2), (2, 0.5), (0, 0.0), (1, 0.4)]
    assert metered(*(event("U", stage, lr=lr) for stage, lr in rates)).newest_lr == 0.0


def test_a_stage_that_skips_more_batches_than_it_is_spared_and_learns_from_none_is_named():
    skipped = [event("B", stage, skipped=True) for stage in (2, 1, 1, 2)]
    meter = metered(event("B", 0), *skipped)
    assert result_of(meter, stages=3, spared=2).skipped == (0, 2, 2)
    with pytest.raises(NonFiniteError, match="epoch 0: stage 1 has skipped all its 2 batches"):
        result_of(meter, stages=3, spared=1)


def test_losses_are_read_from_their_device_only_once_there_are_many(monkeypatch):
    monkeypatch.setattr(meters, "MOST_UNREAD", 3)
    read, meter = [], TrainingMeter()

    def number(batch):
        return lambda: read.append(batch) or torch.tensor(1.0)

    for batch in range(5):
        assert read == ([0, 1, 2, 3] if batch > 3 else [])
        meter.add([event("B", 0, loss=number(batch), targets=1)])
    assert meter.newest_loss(None) == 1.0
    assert read == [0, 1, 2, 3, 4]


def evaluate(*batches, loss=cross_entropy, meters=1):
    """The result of meters that take turns."""
    several = [EvaluationMeter(1, OwnMetrics({})) for _ in range(meters)]
    for number, (output, targets) in enumerate(batches):
        samples = count_batch(targets, output)
        prediction = Prediction(0, output, targets, None, None, samples)
        several[number % meters].add(prediction, loss)
    total = EvaluationMeter(1, OwnMetrics({}))
    for meter in several:
        total.merge(meter.values())
    return total.result()


@pytest.mark.parametrize("meters", [1, 2, 3])
@pytest.mark.parametrize("order", [1, -1])
def test_an_evaluation_has_an_error_only_if_all_targets_are_class_numbers(meters, order):
    scores = torch.eye(3)
    classes = [(scores, torch.tensor([0, 1, 1])), (scores[:1], torch.tensor([0]))]
    assert evaluate(*classes[::order], meters=meters).error == 0.25
    mixed = [*classes, (scores[:2], scores[:2])]
    result = evaluate(*mixed[::order], meters=meters)
    whole = sum(float(cross_entropy(*batch)) * len(batch[0]) for batch in mixed) / 6
    assert (result.error, result.samples) == (None, 6)
    assert result.loss == pytest.approx(whole, rel=1e-6)


def test_ignored_tokens_weigh_nothing_in_an_evaluation():
    scores = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    targets = scores.argmax(-1)
    targets[0, :4] = (targets[0, :4] + 1) % 3
    targets[2:, 1:] = -100
    result = evaluate((scores[:2], targets[:2]), (scores[2:], targets[2:]))
    assert result.loss == pytest.approx(float(cross_entropy(scores, targets)), rel=1e-5)
    assert (result.error, result.samples) == (4 / 14, 4)


def test_a_batch_whose_targets_are_all_ignored_is_left_out():
    scores, targets = torch.randn(2, 3), torch.tensor([0, 1])
    ignored = torch.full((2,), -100)
    alone = evaluate((scores, targets))
    for loss in (cross_entropy, nn.CrossEntropyLoss()):  # 0 and NaN for such a batch
        both = evaluate((scores, targets), (scores, ignored), loss=loss)
        assert (both.loss, both.error, both.samples) == (alone.loss, alone.error, 4)
    with pytest.raises(DataError, match="no target of any batch is one of the classes"):
        evaluate((scores, ignored))


def test_samples_are_those_of_the_outputs_if_there_are_no_targets():
    output = {"loss": torch.tensor(2.0), "logits": torch.zeros(8, 3)}
    result = evaluate((output, None), loss=lambda output, _: output["loss"])
    assert (result.loss, result.error, result.samples) == (2.0, None, 8)
    with pytest.raises(DataError, match=r"samples cannot be counted.* leave out empty batches"):
        evaluate((torch.tensor(2.0), None), loss=lambda output, _: output)


def test_the_loss_of_an_evaluation_is_computed_in_the_precision_of_training():
    seen = []

    def loss(output, targets):
        seen.append(torch.nn.functional.cross_entropy(output, targets).dtype)
        seen.append((output.float() @ output.float().T).dtype)
        return output.float().mean()

    trainer = Trainer(
        [stage.float() for stage in mlp(2)],
        method=BP(),
        optimizer=sgd,
        precision="bf16",
        loss=loss,
    )
    batches = [(x.float(), y) for x, y in data(mlp, 1)]
    trainer.step(*batches[0])
    training = list(seen)
    seen.clear()
    trainer.evaluate(batches)
    assert seen == training == [torch.float32, torch.bfloat16]
