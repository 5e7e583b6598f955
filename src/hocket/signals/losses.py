"""Losses, and the errors and targets that are counted of a batch.

Class scores have their classes in the last dimension, (B, C) or (B, T, C). Scores of four or
more dimensions have them in dimension 1, (B, C, H, W), as in PyTorch. Where the targets fit
only the other of these two dimensions, it is that one.
"""

from functools import partial
from typing import Any, Protocol

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.errors import DataError, HocketError, OptionError
from hocket.tree import Tree, count_batch, is_inexact

IGNORED = -100
"""Class index of a prediction that is not asked for: the default of PyTorch's losses."""


class Loss(Protocol):
    """Loss of the network, a function of its outputs and targets."""

    def __call__(self, output: Tree, targets: Tree, /) -> Tensor:
        """Return the mean loss of a batch, a scalar."""


def cross_entropy(output: Tree, targets: Tree, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy over samples, tokens or pixels, a scalar.

    Targets of -100 are left out of the mean; if no others are left, the loss is 0. An output
    with a ``loss``, as of transformers with ``labels`` among the inputs, has that one.

    Args:
        output: Scores of the classes, (B, C), (B, T, C) or (B, C, H, W).
        targets: Class indices, (B,), (B, T) or (B, H, W); or probabilities of the classes, of
            the shape of the output.
        label_smoothing: Share of each target that all classes divide equally, in [0, 1).

    Raises:
        DataError: The targets are not one class index for each prediction.

    >>> scores = torch.tensor([[0.0, 0.0], [5.0, 1.0]])
    >>> cross_entropy(scores, torch.tensor([1, -100]))  # of the first sample alone
    tensor(0.6931)
    """
    if isinstance(own := getattr(output, "loss", None), Tensor) and not label_smoothing:
        return own

    # Probabilities of the classes as targets.
    both = isinstance(output, Tensor) and isinstance(targets, Tensor)
    alike = both and targets.is_floating_point() and output.shape == targets.shape
    if alike and output.dim() >= 2:
        dtype = torch.promote_types(output.dtype, targets.dtype)
        if output.dim() == 3:
            output, targets = output.flatten(0, 1), targets.flatten(0, 1)
        return F.cross_entropy(
            output.to(dtype), targets.to(dtype), label_smoothing=label_smoothing
        )

    # Class indices as targets.
    dimension = class_dimension(output, targets)
    if dimension is None:
        advice = "for others give a loss of your own, a function of output and targets"
        if hasattr(output, "loss"):  # labels of causal models are shifted by one
            advice = (
                "the network computes its loss by itself if its inputs have 'labels': give "
                "loss=lambda output, _: output.loss and these, or for one class for each "
                "sample loss=lambda output, targets: hocket.cross_entropy(output.logits, "
                "targets)"
            )
        raise DataError(
            f"cross_entropy got an output {describe(output)} and targets {describe(targets)}; "
            "it takes one tensor of class scores, (B, C), (B, T, C) or (B, C, H, W), and whole "
            "numbers (B,), (B, T) or (B, H, W), or probabilities of the scores' shape; "
            f"{advice}"
        )
    if dimension == output.dim() - 1:
        output, targets = output.flatten(0, -2), targets.flatten()
    if targets.dtype not in (torch.int64, torch.uint8):
        targets = targets.long()  # which PyTorch asks for

    # PyTorch's mean over no targets is NaN, and their sum is 0.
    is_empty = targets.is_cpu and not (targets.numpy() >= 0).any()
    loss = F.cross_entropy(
        output,
        targets,
        ignore_index=IGNORED,
        reduction="sum" if is_empty else "mean",
        label_smoothing=label_smoothing,
    )
    return loss if targets.is_cpu else zero_without_targets(loss, targets)


def zero_without_targets(mean: Tensor, targets: Tensor) -> Tensor:
    """Return a mean loss, or 0 for the mean over no targets, without a wait for the device.

    Args:
        mean: Mean loss, a scalar.
        targets: Class indices (...).
    """
    return torch.where((targets >= 0).any(), mean, 0.0)


def compute_loss(loss: Loss, output: Tree, targets: Tree) -> Tensor:
    """Return the loss of a batch, a tensor of one number.

    Args:
        loss: The loss.
        output: Outputs of the network or of a head, with tensors of shape (B, ...).
        targets: Targets of the batch.

    Raises:
        label_error: A target is no index of an output, which is an error of the data.
        HocketError: The loss refuses them.
        OptionError: The loss is not one number.
        Exception: The loss raised it.
    """
    try:
        value = loss(output, targets)
    except IndexError as error:
        raise label_error(error, output) from error
    except HocketError:
        raise
    except Exception as error:
        error.add_note(
            f"(the loss was called with an output {describe(output)} and targets "
            f"{describe(targets)})"
        )
        raise
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise OptionError(
            f"the loss gives a value {describe(value)} for an output {describe(output)}; it "
            "must return a tensor of one number, such as the mean over the batch"
        )
    return value


def label_error(error: IndexError, predictions: Tree) -> DataError:
    """Return the error of the data to raise for the IndexError of a bad label."""
    shape = tuple(predictions.shape) if isinstance(predictions, Tensor) else "(a structure)"
    return DataError(
        f"the targets do not fit the outputs of shape {shape}: {error}; "
        "labels must lie between 0 and the number of outputs less one"
    )


def class_dimension(output: Tree, targets: Tree) -> int | None:
    """Return the dimension of the classes if there is one class index for each prediction.

    Returns:
        The dimension, from 0; None if the targets are no class indices of the output.

    >>> import torch
    >>> class_dimension(torch.zeros(2, 7, 4), torch.zeros(2, 7, dtype=torch.long))
    2
    >>> class_dimension(torch.zeros(2, 4, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long))
    1
    """
    if not (isinstance(output, Tensor) and isinstance(targets, Tensor)) or output.dim() < 2:
        return None
    if targets.is_floating_point() or targets.is_complex():
        return None
    last = output.dim() - 1
    for dimension in (last, 1) if last < 3 else (1, last):
        if output.shape[:dimension] + output.shape[dimension + 1 :] == targets.shape:
            return dimension
    return None


def count_errors(output: Tree, targets: Tree, ignored: int = IGNORED) -> tuple[int, int] | None:
    """Return the numbers of wrong and of all predictions; None without class indices.

    A single score is no choice between classes, so it has none.

    Predictions whose target is not one of the classes, as -100 and 255 often are, do not count.

    Args:
        output: Class scores, with a dimension for the classes; or an object with ``logits`` of
            shape (B, C). Others are not taken, as targets of tokens may have to be shifted.
        targets: Class indices, of the shape without that dimension.
        ignored: Class index that does not count either, as the loss leaves it out.
    """
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.dim() == 2:
        output = logits
    dimension = class_dimension(output, targets)
    if dimension is None or output.shape[dimension] < 2:
        return None
    targets = targets.long()  # of few bits, they are compared with numbers of as few
    counted = (targets >= 0) & (targets < output.shape[dimension]) & (targets != ignored)
    wrong = counted & (output.argmax(dimension) != targets)
    errors, predictions = torch.stack((wrong.sum(), counted.sum())).tolist()  # one wait
    return errors, predictions


def option_of(loss: Loss, name: str) -> Any:
    """Return an option of a loss, a keyword of a partial or an attribute; None without it.

    >>> option_of(partial(F.cross_entropy, reduction="sum"), "reduction")
    'sum'
    """
    given = loss.keywords if isinstance(loss, partial) else {}
    return given.get(name, getattr(loss, name, None))


def ignored_index(loss: Loss) -> int:
    """Return the class index that a loss leaves out: its ``ignore_index``, or -100.

    >>> ignored_index(torch.nn.CrossEntropyLoss(ignore_index=255)), ignored_index(cross_entropy)
    (255, -100)
    """
    ignored = option_of(loss, "ignore_index")
    return IGNORED if ignored is None else int(ignored)


def weigh_targets(loss: Loss, targets: Tree) -> float | Tensor | None:
    """Return what a mean loss divides by: the number of class indices, or their class weights.

    For targets on a GPU it is a scalar on the GPU, so that nothing waits for it.

    Args:
        loss: The loss; PyTorch's may have weights of the classes.
        targets: Targets of the batch. Class indices that the loss ignores do not count.

    Returns:
        The number, or the sum of weights; None for other targets.
    """
    if not isinstance(targets, Tensor) or is_inexact(targets) or targets.dtype is torch.bool:
        return None
    ignored = ignored_index(loss)
    weighs = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    weighs |= getattr(loss, "func", None) in (F.cross_entropy, F.nll_loss)
    weights = option_of(loss, "weight") if weighs else None
    if weights is not None:
        targets = targets.long()
        kept = (targets >= 0) & (targets < len(weights)) & (targets != ignored)
        weights = weights.to(targets.device)
        weight: Tensor = weights[targets.where(kept, 0)].where(kept, 0).sum()
        return weight
    if targets.is_cpu:  # by the shortest way, as this is done in every tick
        return int(numpy.count_nonzero(targets.numpy() != ignored))
    return (targets.long() != ignored).sum()  # as in `count_errors`


def count_averaged(loss: Loss, output: Tree, targets: Tree, inputs: Tree) -> float | Tensor:
    """Return what the mean loss of a batch is over; see `weigh_targets`.

    Args:
        loss: The loss.
        output: Output of the network. If it has one number for each target, the targets are no
            class indices, and none is left out.
        targets: Targets of the batch.
        inputs: Its inputs, with tensors of shape (B, ...). If the targets are no class indices,
            samples are counted.
    """
    weight = weigh_targets(loss, targets)
    if weight is None:
        return count_batch(targets, inputs)
    is_regression = isinstance(output, Tensor) and output.numel() == targets.numel()
    return targets.numel() if is_regression else weight


def may_draw(loss: Loss) -> bool:
    """Return True unless a loss is known to draw no random numbers."""
    return getattr(loss, "func", loss) is not cross_entropy  # as itself, or as a partial


def describe(value: Tree) -> str:
    """Return a text with the shape of a tensor, or the type of another value.

    >>> describe({"logits": 1})
    'of type dict'
    """
    if isinstance(value, Tensor):
        return f"of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"
