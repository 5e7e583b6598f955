"""Results of an evaluation: means, errors, and what is not counted."""

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd
from hocket import Trainer, cross_entropy
from hocket.errors import DataError
from hocket.methods import BP
from hocket.stage.prediction import Prediction
from hocket.training.metrics import EvaluationMeter
from hocket.training.own_metrics import OwnMetrics


def evaluate(*batches, loss=cross_entropy):
    meter = EvaluationMeter(1, OwnMetrics({}))
    for output, targets in batches:
        meter.add(Prediction(0, output, targets, None, None), loss)
    total = EvaluationMeter(1, OwnMetrics({}))
    total.merge(meter.values())
    return total.result()


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


def test_samples_that_nothing_shows_are_refused():
    with pytest.raises(DataError, match="samples cannot be counted: neither the targets nor"):
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
