"""Metrics of the user's own, measured on the outputs of the network in an evaluation."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

from hocket.errors import DataError, OptionError, raise_problems
from hocket.tree import Tree

MetricFunction: TypeAlias = Callable[[Any, Any], float | Tensor]
"""Returns the value of a batch from its outputs (B, ...) and its targets (B, ...)."""


@runtime_checkable
class MetricObject(Protocol):
    """Metric that gathers batches, such as a metric of torchmetrics."""

    def reset(self) -> None:
        """Forget all batches."""

    def update(self, output: Any, targets: Any) -> None:
        """Add a batch: outputs of the network (B, ...) and targets (B, ...)."""

    def compute(self) -> float | Tensor | Mapping[str, float | Tensor]:
        """Return the value of all batches, or several by name."""


Metric: TypeAlias = MetricFunction | MetricObject
_ASKED = "distributed_available_fn"
"""Attribute of a metric of torchmetrics: a function that says if there are other processes."""
TAKEN = frozenset(
    ["loss", "error", "samples", "exits", "ensemble", "train_loss", "test_loss", "test_error"]
)
"""Names of other results of an evaluation or of an epoch."""


class OwnMetrics:
    """Metrics by name.

    Args:
        metrics: For each name a function of a batch's outputs and targets, averaged over
            samples, or an object with ``reset``, ``update`` and ``compute``.

    Raises:
        OptionError: A name is taken or no text, or something is no metric.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        if not hasattr(metrics, "items"):  # MetricCollection is no Mapping
            raise OptionError(f"metrics is {metrics!r}; give each a name: {{'name': metric}}")
        problems = []
        for name, metric in metrics.items():
            if not isinstance(name, str):
                problems.append(f"the name {name!r} is no text; give text such as 'accuracy'")
            if name in TAKEN:
                problems.append(f"the name {name!r} is another result; choose another one")
            if isinstance(metric, type) or not isinstance(metric, MetricObject | Callable):
                problems.append(
                    f"{name!r} is {metric!r}; give a function of outputs and targets, or an "
                    "object with reset, update and compute"
                )
        raise_problems(OptionError, "cannot use these metrics", problems)
        self._metrics = dict(metrics)
        self._sums: dict[str, float] = {}
        self._samples = 0

    def reset(self) -> None:
        """Begin an evaluation."""
        self._sums, self._samples = dict.fromkeys(self._metrics, 0.0), 0
        for metric in self._metrics.values():
            if isinstance(metric, MetricObject):
                metric.reset()

    def update(self, output: Tree, targets: Tree, samples: int) -> None:
        """Add a batch.

        Args:
            output: Output of the network, (B, ...).
            targets: Targets, (B, ...).
            samples: Number of samples B.

        Raises:
            DataError: The value of a metric is not one number.
        """
        self._samples += samples
        for name, metric in self._metrics.items():
            if isinstance(metric, MetricObject):
                metric.update(output, targets)
            else:
                self._sums[name] += _number(name, metric(output, targets)) * samples

    def compute(self) -> dict[str, float]:
        """Return the value of each metric; nothing if no batch was added.

        Raises:
            DataError: The value of a metric is not one number.
        """
        if not self._samples:
            return {}
        values = {}
        for name, metric in self._metrics.items():
            if isinstance(metric, MetricObject):
                with _alone(metric):
                    value = metric.compute()
                parts = value.items() if isinstance(value, Mapping) else [("", value)]
                for part, each in parts:  # of a MetricCollection
                    whole = f"{name}.{part}" if part else name
                    values[whole] = _number(whole, each)
            else:
                values[name] = self._sums[name] / self._samples
        return values


@contextmanager
def _alone(metric: MetricObject) -> Iterator[None]:
    """Keep a metric of torchmetrics from waiting for processes that have no outputs."""
    # Some hold others, which would wait as well.
    parts = metric.modules() if isinstance(metric, nn.Module) else (metric,)
    before = [(part, vars(part)[_ASKED]) for part in parts if _ASKED in vars(part)]
    try:
        for part, _ in before:
            setattr(part, _ASKED, lambda: False)
        yield
    finally:
        for part, ask in before:
            setattr(part, _ASKED, ask)


def _number(name: str, value: Any) -> float:
    """Return the value of a metric as a number.

    Raises:
        DataError: It is not one number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"metric {name!r} is {value!r}; wanted one number, such as a mean"
        ) from error
