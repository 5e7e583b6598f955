"""The optimizer and the scheduler of one stage, following its own batches and updates."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hocket.distributed.gradient_sync import GradientSync
from hocket.errors import OptionError
from hocket.methods.method import Reduce
from hocket.stage.accumulate import Accumulate

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]
SchedulerUnit = Literal["epoch", "update"]


class Updater:
    """Turns gathered gradients into an update of one stage's weights.

    A tick without a gradient changes nothing: no weight decay, no momentum. The learning rate
    of an update is that of the epoch its batch belongs to, even when the batch comes back
    after the next epoch has begun.

    Args:
        parameters: The weights; a stage may have none.
        optimizer: Builds the optimizer.
        scheduler: Builds the scheduler, if there is one.
        scheduler_unit: Whether the scheduler counts epochs or updates.
        reduce: What becomes of several gradients.
        lr_factor: Factor on the optimizer's learning rates.
        average: Brings the gradients of a stage's replicas together, if there are several.

    Raises:
        OptionError: The scheduler needs a metric, which a stage does not have.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None = None,
        *,
        scheduler_unit: SchedulerUnit = "epoch",
        reduce: Reduce = "mean",
        lr_factor: float = 1.0,
        average: Callable[[Sequence[nn.Parameter]], GradientSync] | None = None,
    ) -> None:
        self.optimizer = optimizer(parameters) if parameters else None
        self.scheduler: LRScheduler | None = None
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * lr_factor
            self.scheduler = scheduler(self.optimizer) if scheduler else None
            # Else torch warns of a scheduler that steps before the first update, which is right
            # where that update comes in a later epoch, or came in another process.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
        if isinstance(self.scheduler, ReduceLROnPlateau):
            raise OptionError(
                "ReduceLROnPlateau needs a validation metric, which a stage does not have; "
                "use a scheduler that counts epochs or updates"
            )
        self.parameters = parameters
        self._average = average(parameters) if average is not None and parameters else None
        self._gradients = Accumulate(parameters, reduce)
        self._per = scheduler_unit
        self._epoch = 0
        self.version = 0

    @property
    def gathered(self) -> int:
        """How many batches' gradients wait for an update."""
        return self._gradients.count

    def drop(self) -> None:
        """Forget the gradients of one batch that were not taken."""
        for parameter in self.parameters:
            parameter.grad = None

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """What the optimizer keeps of each weight, such as its momentum, by what it is."""
        known = self.optimizer.state if self.optimizer is not None else {}
        return {
            f"{what} of the optimizer for weight {n}": value
            for n, parameter in enumerate(self.parameters)
            for what, value in known.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def gather(self) -> list[Tensor | None]:
        """Take the gradients of one batch from the parameters; they are returned as well."""
        if self._average is not None:
            self._average.finish()
        return self._gradients.add()

    def update(self, epoch: int) -> float:
        """Update the weights with what was gathered; gives the learning rate that was used.

        Args:
            epoch: The epoch of the last batch gathered.
        """
        if self.scheduler is not None and self._per == "epoch":
            for _ in range(epoch - self._epoch):
                self.scheduler.step()
        self._epoch = epoch
        rate = float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else 0.0
        self._gradients.reduce()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None and self._per == "update":
            self.scheduler.step()
        self.version += 1
        return rate

    @property
    def _kinds(self) -> list[str]:
        return [type(own).__name__ for own in (self.optimizer, self.scheduler)]

    def mismatches(self, state: dict[str, Any], what: str) -> list[str]:
        """What keeps a state from being one of this updater, in words."""
        was, own = " and ".join(state["kinds"]), " and ".join(self._kinds)
        return [] if was == own else [f"{what}: updated by {was}, wanted {own}"]

    @property
    def ordered_parameters(self) -> list[nn.Parameter]:
        """The weights in the order in which the optimizer's state counts them."""
        groups = self.optimizer.param_groups if self.optimizer else []
        return [parameter for group in groups for parameter in group["params"]]

    def adopt_state(self, remembered: Sequence[Any], epoch: int, updates: int) -> None:
        """Go on from optimizers that had these weights among others.

        Args:
            remembered: What they remember of each weight, in order; None for nothing.
            epoch: The epoch that the scheduler is to be in.
            updates: How many updates there have been.
        """
        if self.optimizer is not None:
            known = {n: own for n, own in enumerate(remembered) if own is not None}
            state = self.optimizer.state_dict() | {"state": known}
            self.optimizer.load_state_dict(state)
        self._epoch, self.version = epoch, updates
        for _ in range(epoch if self._per == "epoch" else updates):
            if self.scheduler is not None:
                self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """What optimizer and scheduler remember, what was gathered, and the counters."""
        return {
            "kinds": self._kinds,
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "gathered": self._gradients.state_dict(),
            "epoch": self._epoch,
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of an updater of the same weights."""
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._gradients.load_state_dict(state["gathered"])
        self._epoch, self.version = state["epoch"], state["version"]
