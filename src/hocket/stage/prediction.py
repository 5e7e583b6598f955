"""What a stage makes of a batch that it is not trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.tree import Tree


@dataclass(frozen=True)
class Prediction:
    """A stage's output for a batch, and what can already be predicted of the targets there.

    Attributes:
        stage: Which stage, counted from 0.
        output: What goes on to the next stage, or out of the network.
        targets: The targets of the batch.
        prediction: Scores of the classes by this stage's exit: of its head, or at the end of
            the network the output. None where no stage has a head, or targets are no class
            numbers.
        votes: What the exits up to this one say together; None where ``prediction`` is.
    """

    stage: int
    output: Tree
    targets: Tree
    prediction: Tensor | None
    votes: Tensor | None


def add_vote(votes: Tensor | None, prediction: Tensor) -> Tensor:
    """The votes with those of one more exit, whose probabilities count twice the last one's.

    So exit i of k counts ``2**i`` in parts of ``2**k``, as in the code of DGL (Belilovsky,
    Eickenberg, Oyallon, arXiv 1901.08164), which scales the sum to 1; that moves no maximum.

    Args:
        votes: Of the exits before, (B, C) or (B, T, C); None if there are none.
        prediction: Scores of the classes, the same shape.

    >>> one, other = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 9.0, 0.0]])
    >>> joined(joined(None, one), other).argmax().item()
    1
    """
    wide = torch.promote_types(prediction.dtype, torch.float32)
    probabilities = prediction.softmax(-1, dtype=wide)
    return probabilities if votes is None else votes / 2 + probabilities
