"""Forwards that a stage does not train on: for evaluation, and for others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.modes import evaluation_mode
from hocket.program.action import Action
from hocket.signals.losses import class_dimension
from hocket.stage.core import StageCore
from hocket.stage.passes.edges import send_output, to_outgoing
from hocket.stage.report import ActionReport
from hocket.tree import Tree, copy_tensors, count_batch, count_samples, tensors


@dataclass(frozen=True)
class Prediction:
    """Output of a stage for a batch, and the class scores that its exit predicts.

    An exit is the head of a stage, or the end of a network whose stages have heads.

    Attributes:
        stage: Number of the stage, from 0.
        output: Input of the next stage, or output of the network, (B, ...).
        targets: Targets of the batch, (B, ...).
        prediction: Class scores of this stage's exit, (B, C) or (B, T, C); None if no stage has
            a head, or the targets are not class indices.
        ensemble: Class scores of all exits up to this one together, of the same shape; None if
            ``prediction`` is None.
        samples: Number of samples of the batch; 0 if nothing shows it.
    """

    stage: int
    output: Tree
    targets: Tree
    prediction: Tensor | None
    ensemble: Tensor | None
    samples: int


def predict_batch(
    core: StageCore, values: Tree, targets: Tree, ensemble: Tensor | None
) -> Prediction:
    """Forward a batch for evaluation, in the precision of training.

    Args:
        core: The stage.
        values: Output of the stage before, with tensors of shape (B, ...).
        targets: Targets of the batch. Only class indices have exits.
        ensemble: Class scores of the exits of the stages before, (B, C) or (B, T, C).
    """
    parts = core.parts
    with evaluation_mode(parts.signal_network), core.contexts.predicting():
        output = to_outgoing(parts.module(copy_tensors(values)), core.tensors.all())
        scores = parts.signal.predict(parts.signal_network, output)
    # If stages before have exits, the end of the network is one more.
    if scores is None and ensemble is not None:
        scores = output
    samples = count_batch(targets, output) or count_samples(values)
    if scores is None or class_dimension(scores, targets) is None:
        return Prediction(parts.index, output, targets, None, None, samples)
    together = add_to_ensemble(ensemble, scores)
    return Prediction(parts.index, output, targets, scores, together, samples)


def add_to_ensemble(ensemble: Tensor | None, prediction: Tensor) -> Tensor:
    """Return the ensemble with one more exit, which has twice the weight of the exit before.

    So exit i of k has the weight ``2**i / 2**k``, as in the code of DGL (Belilovsky,
    Eickenberg, Oyallon, arXiv 1901.08164), except that the code scales the sum to 1, which
    does not change the class predicted.

    Args:
        ensemble: Scores of the exits before, (B, C) or (B, T, C); None if there are none.
        prediction: Class scores of the new exit, of the same shape.

    >>> first, second = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 9.0, 0.0]])
    >>> add_to_ensemble(add_to_ensemble(None, first), second).argmax().item()
    1
    """
    wide = torch.promote_types(prediction.dtype, torch.float32)
    probabilities = prediction.softmax(-1, dtype=wide)
    return probabilities if ensemble is None else ensemble / 2 + probabilities


def pass_on(core: StageCore, forward: Action) -> ActionReport:
    """Do a forward for the stages behind only, as a stage that has finished training.

    Raises:
        PacketError: The batch has not come.
        NonFiniteError: The output is NaN or infinite, and that is to stop the training.
    """
    activation = core.parts.to_previous.receive(forward.batch)
    with torch.no_grad(), evaluation_mode(core.parts.module), core.contexts.predicting():
        output = core.parts.module(copy_tensors(activation.values))
    outputs = tensors(output)
    fault, _ = core.checks.layers.fault_in_output(outputs, lambda: [True] * len(outputs))
    if fault is not None:  # the buffer behind this stage takes no skipped batch
        core.checks.layers.require_skippable(fault)
    else:
        none = (False,) * len(outputs)
        send_output(core, activation, output, none, none)
    version, skipped = core.updater.version, fault is not None
    return ActionReport(activation.epoch, version, skipped=skipped, fault=fault)
