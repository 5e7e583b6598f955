"""Output of a stage in evaluation, with the predictions of its exits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.tree import Tree


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
