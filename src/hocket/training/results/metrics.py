"""Results of a training, epoch by epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hocket.errors import OptionError, unknown_name


@dataclass(frozen=True)
class EvaluationResult:
    """Quality of a network on data it is not trained on; ``EpochResult`` has an example.

    Attributes:
        loss: Mean of the losses of batches, weighted by their samples, or by their predictions
            that count if targets are class numbers.
        error: Share of wrong predictions, a fraction; None if targets are not class numbers.
            Predictions whose target is not one of the classes (such as -100) do not count.
        samples: Number of samples it was measured on.
        exits: If stages have heads, the error of each head's predictions; the last one is the
            network's. Empty without heads or class numbers.
        ensemble: Error of all exits together, each counted twice the one before it; None
            without exits.
        metrics: Value of each metric of the user's own, by its name.
    """

    loss: float
    error: float | None
    samples: int
    exits: tuple[float, ...] = ()
    ensemble: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochResult:
    """Result of one epoch of a training.

    Attributes:
        number: Number of the epoch, from 0.
        loss: Mean training loss over the class indices, or else the samples, of its batches
            that have reached the last stage: with delays not of the last few of an epoch,
            unless it is the last epoch or the method drains.
        evaluation: Result on the validation data; None without such data.
        seconds: Time of training, without the evaluation.
        samples: Number of samples that were trained on.
        staleness: For each stage, the mean staleness measured.
        skipped: For each stage, the number of batches that came back and that it did not
            train on, because a value was NaN or infinite or because of ``skip_batches``.
        updates: Updates of a stage that the batches of the ``fit`` lead to, this epoch
            included; None if every stage counts its own.

    >>> import torch
    >>> from hocket import Trainer
    >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> trainer = Trainer(network, stages=2, optimizer=torch.optim.SGD)
    >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))] * 4
    >>> (epoch,) = trainer.fit(batches, batches, epochs=1, progress=False)
    >>> epoch.samples, epoch.updates, epoch.staleness
    (16, 4, (0.75, 0.0))
    >>> epoch.evaluation.error, epoch.evaluation.samples
    (0.5, 16)
    """

    number: int
    loss: float
    evaluation: EvaluationResult | None
    seconds: float
    samples: int
    staleness: tuple[float, ...]
    skipped: tuple[int, ...]
    updates: int | None = None


def read_metric(result: EpochResult, metric: str, follower: str) -> float:
    """Return one result of an epoch.

    Args:
        result: Results of the epoch.
        metric: ``test_error``, ``test_loss``, ``train_loss``, or the name of a metric of the
            trainer.
        follower: Name of what follows the metric, for messages.

    Raises:
        OptionError: The epoch was not evaluated as the metric needs it.
    """
    if metric == "train_loss":
        return result.loss
    where = f"{follower} follows {metric}, and epoch {result.number}"
    evaluation = result.evaluation
    if evaluation is None:
        raise OptionError(
            f"{where} was not evaluated; give fit validation data, or follow train_loss"
        )
    if metric == "test_error" and evaluation.error is None:
        raise OptionError(
            f"{where} has no error, as targets are not class numbers; follow test_loss"
        )
    values = {"test_error": evaluation.error, "test_loss": evaluation.loss}
    value = (values | dict(evaluation.metrics)).get(metric)
    if value is None:
        known = [*values, "train_loss", *evaluation.metrics]
        raise OptionError(f"{follower}: {unknown_name('metric', metric, known)}")
    return value
