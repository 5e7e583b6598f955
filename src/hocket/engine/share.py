"""Part of each batch that one of several replicas trains on."""

from hocket.engine.engine import Batch
from hocket.errors import DataError
from hocket.signals.losses import weigh_targets
from hocket.stage.stage import Stage
from hocket.tree import Tree, count_samples, take_samples, tensors


def take_share(batch: Batch, replica: int, replicas: int, stage: Stage) -> tuple[float, Batch]:
    """Return a replica's fraction of a batch, and that part of it.

    The losses of the parts, weighted with their fractions, add up to the loss of the batch: the
    fraction counts class indices that are not ignored, with the weights of their classes in the
    loss, or else samples. Replicas that meet rarely have whole losses, unless all their class
    indices are ignored.

    Args:
        batch: Inputs and targets, with tensors of shape (B, ...).
        replica: Number of the replica, from 0.
        replicas: Number of replicas.
        stage: First stage of any replica.

    Raises:
        DataError: The batch has fewer samples than there are replicas, or its targets cannot
            be divided.
    """
    if replicas == 1:
        return 1.0, batch

    # The samples of this replica.
    whole = count_samples(batch)
    if whole < replicas:
        raise DataError(
            f"a batch of {whole} cannot be shared by {replicas} replicas; use larger "
            "batches, or drop a short last one"
        )
    first, last = (whole * r // replicas for r in (replica, replica + 1))

    # Inputs and targets of these samples.
    inputs, targets = batch
    is_tuple = type(targets) is tuple  # perhaps of each sample, as of zip(*samples)
    own = take_samples(
        (inputs, list(targets) if is_tuple else targets), slice(first, last), whole
    )
    if is_tuple:
        own = own[0], tuple(own[1])
    if tensors(batch[1]) and _shapes(own[1]) == _shapes(batch[1]):
        raise DataError(
            f"replicas cannot divide the targets of a batch of {whole}: none of their "
            f"tensors has that length, and no list that many entries: {_shapes(batch[1])}"
        )

    # The fraction of the loss that they are.
    fraction = (last - first) / whole
    loss = stage.core.setup.loss
    weight, all_weight = (weigh_targets(loss, each[1]) for each in (own, batch))
    if weight is not None and all_weight:
        fraction = float(weight) / float(all_weight)
    if stage.core.meetings is not None:
        fraction = float(fraction > 0)
    return fraction, own


def _shapes(tree: Tree) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors(tree)]
