"""Optimizer and scheduler of one stage, which count that stage's own batches and updates."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hocket.errors import OptionError
from hocket.methods.method import Reduce
from hocket.stage.accumulate import GradientAccumulator

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]
SchedulerUnit = Literal["epoch", "update"]


class GradientReduction(Protocol):
    """Adds up the gradients of the replicas of a stage, started by the backward itself."""

    def finish(self) -> None:
        """Wait until ``grad`` of every parameter is the sum over all replicas."""


BuildReduction: TypeAlias = Callable[[Sequence[nn.Parameter]], GradientReduction]


class Updater:
    """Updates one stage's weights with the gradients of one or several batches.

    A tick without a gradient changes nothing: no weight decay, no momentum. The learning rate
    of an update is that of the epoch of its batch, even if the gradient of that batch comes
    back after the next epoch has begun.

    Args:
        parameters: Weights of the stage; there may be none.
        build_optimizer: Builds the optimizer.
        build_scheduler: Builds the scheduler; None for a constant learning rate.
        scheduler_unit: ``epoch`` or ``update``: when the scheduler makes a step.
        reduce: ``mean`` or ``sum``: reduction of the gradients of several batches.
        lr_factor: Factor on the optimizer's learning rates.
        build_reduction: Builds the reduction over the stage's replicas; None without replicas.

    Raises:
        OptionError: The scheduler needs a metric, which a stage does not have.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        build_optimizer: OptimizerFactory,
        build_scheduler: SchedulerFactory | None = None,
        *,
        scheduler_unit: SchedulerUnit = "epoch",
        reduce: Reduce = "mean",
        lr_factor: float = 1.0,
        build_reduction: BuildReduction | None = None,
    ) -> None:
        self.parameters = parameters
        self.optimizer = build_optimizer(parameters) if parameters else None
        self.scheduler: LRScheduler | None = None
        self.version = 0  # updates done
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * lr_factor
            self.scheduler = build_scheduler(self.optimizer) if build_scheduler else None
            # Otherwise torch warns of a scheduler that steps before the first update. Here that
            # is right: the update may come in a later epoch, or came in another process.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
        if isinstance(self.scheduler, ReduceLROnPlateau):
            raise OptionError(
                "ReduceLROnPlateau needs a validation metric, which a stage does not have; "
                "use a scheduler that counts epochs or updates"
            )
        self._accumulator = GradientAccumulator(parameters, reduce)
        self._reduction = (
            build_reduction(parameters) if build_reduction and parameters else None
        )
        self._scheduler_unit = scheduler_unit
        self._epoch = 0

    @property
    def accumulated_count(self) -> int:
        """Number of batches whose gradients wait for an update."""
        return self._accumulator.count

    @property
    def ordered_parameters(self) -> list[nn.Parameter]:
        """The weights in the order in which the optimizer's state counts them."""
        groups = self.optimizer.param_groups if self.optimizer else []
        return [parameter for group in groups for parameter in group["params"]]

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, such as momenta, by descriptions."""
        states = self.optimizer.state if self.optimizer is not None else {}
        return {
            f"{key} of the optimizer for weight {n}": value
            for n, parameter in enumerate(self.parameters)
            for key, value in states.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def zero_grad(self) -> None:
        """Discard the gradients of a batch that is not learned from."""
        for parameter in self.parameters:
            parameter.grad = None

    def accumulate(self) -> list[Tensor | None]:
        """Move the gradients of one batch out of ``grad``, reduced over replicas.

        Returns:
            The gradient of each parameter, of its shape; None if it has none.
        """
        if self._reduction is not None:
            self._reduction.finish()
        return self._accumulator.add()

    def update(self, epoch: int) -> float:
        """Update the weights with the accumulated gradients; return the learning rate used.

        Args:
            epoch: Epoch of the last batch accumulated.
        """
        if self.scheduler is not None and self._scheduler_unit == "epoch":
            for _ in range(epoch - self._epoch):
                self.scheduler.step()
        self._epoch = epoch
        lr = float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else 0.0
        self._accumulator.reduce()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None and self._scheduler_unit == "update":
            self.scheduler.step()
        self.version += 1
        return lr

    def adopt_state(self, remembered: Sequence[Any], epoch: int, updates: int) -> None:
        """Continue from the state of optimizers that had these weights among others.

        Args:
            remembered: State of each weight, in order; None if it has no state.
            epoch: Epoch that the scheduler continues in.
            updates: Number of updates that the weights have seen.
        """
        if self.optimizer is not None:
            states = {n: state for n, state in enumerate(remembered) if state is not None}
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": states})
        self._epoch, self.version = epoch, updates
        for _ in range(epoch if self._scheduler_unit == "epoch" else updates):
            if self.scheduler is not None:
                self.scheduler.step()

    def mismatches(self, state: dict[str, Any], label: str) -> list[str]:
        """Return in words each reason why a state is not one of this updater."""
        saved, wanted = " and ".join(state["kinds"]), " and ".join(self._class_names)
        return [] if saved == wanted else [f"{label}: updated by {saved}, wanted {wanted}"]

    @property
    def _class_names(self) -> list[str]:
        return [type(part).__name__ for part in (self.optimizer, self.scheduler)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer and scheduler, accumulated gradients, and counters."""
        return {
            "kinds": self._class_names,
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "gathered": self._accumulator.state_dict(),
            "epoch": self._epoch,
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an updater of the same weights."""
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._accumulator.load_state_dict(state["gathered"])
        self._epoch, self.version = state["epoch"], state["version"]
