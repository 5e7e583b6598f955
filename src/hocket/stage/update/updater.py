"""Optimizer and scheduler of one stage, which count that stage's own batches and updates."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hocket.distributed.replicas.gradient_sync import BucketSum
from hocket.errors import OptionError
from hocket.optim.factory import NEEDS_CLOSURE, NamedParameters
from hocket.options.common_options import Reduce, SchedulerUnit
from hocket.remedies.remedy import StageRemedies
from hocket.stage.parts import BuildReduction
from hocket.stage.update.accumulate import GradientAccumulator
from hocket.stage.update.bare_step import do_step
from hocket.stage.update.clipping import Clipping
from hocket.stage.update.late_sums import LateSums
from hocket.stage.weight_copies.copies import repeated_views
from hocket.tree import map_tensors, tensors


class Updater:
    """Updates one stage's weights with the gradients of one or several batches.

    A tick without a gradient changes nothing: no weight decay, no momentum. An update uses the
    learning rate of its batch's epoch, even if the gradient of that batch comes back after the
    next epoch has begun.

    Args:
        parameters: Weights of the stage by name; there may be none.
        optimizer: Their optimizer; None if there are no weights.
        scheduler: Scheduler of the learning rate; None for a constant one.
        scheduler_unit: ``epoch`` or ``update``: when the scheduler makes a step.
        scheduler_start: Updates before a scheduler that counts updates begins.
        reduce: ``mean`` or ``sum``: reduction of the gradients of several batches.
        lr_factor: Returns the factor on the scheduler's learning rates after a number of
            updates.
        build_reduction: Builds the reduction over the stage's replicas; None for none.
        replica_delay: Updates by which the reduced gradients are late.
        clip: Limit of the norm of the gradient.
        remedies: Remedies for late gradients; None for none.
        step: Does a step of an optimizer whose weights have their gradients.

    Attributes:
        names: Names of the weights.
        may_draw: True if the optimizer or a remedy may draw random numbers; none of Hocket's
            does, and none of PyTorch's.
    """

    def __init__(
        self,
        parameters: NamedParameters,
        optimizer: Optimizer | None,
        scheduler: LRScheduler | None = None,
        *,
        scheduler_unit: SchedulerUnit = "epoch",
        scheduler_start: int = 0,
        reduce: Reduce = "mean",
        lr_factor: Callable[[int], float] = lambda update: 1.0,
        build_reduction: BuildReduction | None = None,
        replica_delay: int = 0,
        clip: Clipping = Clipping(),  # noqa: B008  # it is frozen
        remedies: StageRemedies | None = None,
        step: Callable[[Optimizer], None] = do_step,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [weight for _, weight in parameters]
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.given_groups = _plain_values(optimizer)  # before training changes them
        self.version = 0  # updates done
        self.remedies = StageRemedies() if remedies is None else remedies
        self.may_draw = self.remedies.may_draw
        if optimizer is not None:
            known = type(optimizer).__module__.startswith(("hocket.", "torch."))
            self.may_draw |= not known
            # Otherwise torch warns of a scheduler that steps before the first update. Here that
            # is right: the update may come in a later epoch, or came in another process.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        self.accumulator = GradientAccumulator(self.parameters, reduce, clip)
        self._reduction = (
            build_reduction(self.parameters) if build_reduction and parameters else None
        )
        self._late: LateSums | None = None
        if self._reduction is not None and replica_delay:
            self._late = LateSums(self._reduction, replica_delay)
        # Gradients of a batch are those of all replicas before its update.
        self.reduces = self._reduction is not None and self._late is None
        self._sums: Sequence[BucketSum] = ()  # of the present batch
        self.follows_losses = isinstance(scheduler, ReduceLROnPlateau)
        self._scheduler_unit = scheduler_unit
        self._scheduler_start = scheduler_start
        self._lr_factor = lr_factor
        self._do_step = step
        self._epoch = 0
        self._losses: dict[int, float] = {}  # on validation data, by epoch

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, such as momenta, by descriptions."""
        states = self.optimizer.state if self.optimizer is not None else {}
        return {
            f"{key} of the optimizer for weight {name!r}": value
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for key, value in states.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def zero_grad(self) -> None:
        """Discard the gradients of all weights."""
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def late_updates(self) -> int:
        """Number of updates whose gradients are on their way between replicas."""
        return 0 if self._late is None else len(self._late)

    def expect_gradients(self) -> None:
        """Begin to add up gradients over replicas as the next backward computes them."""
        if self._reduction is not None:
            self._reduction.expect()

    def begin_sums(self) -> None:
        """Begin to add up the gradients in ``grad`` over replicas, unless their sum is late."""
        if self._reduction is not None and self._late is None:
            self._sums = self._reduction.take()

    def accumulate(
        self, version: int | None = None, then: Sequence[Tensor] | None = None
    ) -> list[Tensor | None]:
        """Move the gradients of one batch out of ``grad``, reduced over replicas.

        All replicas have called `begin_sums` before.

        Args:
            version: Updates before the forward of the batch; None for all so far.
            then: Weights of the forward, if a remedy wants them and they have changed since.

        Returns:
            The gradient of each parameter, corrected and before it is clipped, of its shape;
            None if it has none. If it is reduced later, this replica's.
        """
        version = self.version if version is None else version
        if self._late is None:
            if self._reduction is not None:
                self._reduction.put(self._sums)
                self._sums = ()
            return self._add(version, then)
        if then is None and self.remedies.compares:  # they will have changed
            then = [weight.detach().clone() for weight in self.parameters]
        self._late.add(version, then)
        return self.accumulator.take()

    def _add(self, version: int, then: Sequence[Tensor] | None) -> list[Tensor | None]:
        """Correct the gradients of one batch in ``grad``, and accumulate them."""
        staleness = self.version - version
        for remedy in self.remedies.acting_on(self.version):
            remedy.correct_gradient(then)
        if not self.remedies.takes(staleness):
            return self.accumulator.take()
        for remedy in self.remedies.each:
            remedy.after_backward(staleness)
        return self.accumulator.add()

    def due_epoch(self, epoch: int | None) -> int | None:
        """Return the epoch of the update that is due now; None if there is nothing to apply.

        Args:
            epoch: Epoch of the last batch accumulated; None to apply the oldest gradients that
                are on their way between replicas, as no batch comes any more.
        """
        if self._late is not None:
            due = self.late_updates > 0 if epoch is None else self._late.close(epoch)
            if not due:
                return None
            assert self._reduction is not None, "whose sums are late"
            epoch, batches = self._late.pop()
            for batch in batches:
                self._reduction.put(batch.sums)
                self._add(batch.version, batch.then)
        return epoch if self.accumulator.count else None

    def update(self, epoch: int) -> float:
        """Update the weights with the accumulated gradients; return the learning rate used.

        Args:
            epoch: Epoch of the last batch accumulated.

        Raises:
            OptionError: The optimizer cannot do a step without a closure, or the scheduler
                follows validation losses and an epoch has none.
        """
        # Let the scheduler count the epochs that have passed.
        if self.scheduler is not None and self._scheduler_unit == "epoch":
            for passed in range(self._epoch, epoch):
                if not isinstance(self.scheduler, ReduceLROnPlateau):
                    self.scheduler.step()
                elif passed in self._losses:
                    self.scheduler.step(self._losses.pop(passed))
                else:
                    raise OptionError(
                        f"ReduceLROnPlateau follows the validation loss, and epoch {passed} "
                        "has none; give `fit` validation data, or `end_epoch` the loss"
                    )
        self._epoch = epoch

        # Step with the mean or the sum of the gradients.
        self.accumulator.reduce()
        lr = 0.0 if self.optimizer is None else self._step(self.optimizer)
        self.zero_grad()  # of all weights: the optimizer may have been built without some

        # Count the update.
        counts = self._scheduler_unit == "update" and self.version >= self._scheduler_start
        if self.scheduler is not None and counts:
            self.scheduler.step()
        self.version += 1
        return lr

    def note_loss(self, epoch: int, loss: float) -> None:
        """Keep the validation loss of an epoch, until the first update of a later one."""
        if self.follows_losses:
            self._losses[epoch] = loss

    def _step(self, optimizer: Optimizer) -> float:
        """Do one step, and return its first learning rate."""
        # Step, and let remedies add to it.
        remedies = self.remedies
        factor = self._lr_factor(self.version) * remedies.lr_factor(self.version)
        told = self.parameters if remedies.needs_changes else []
        before = [weight.detach().clone() for weight in told]
        lrs = _step_scaled(optimizer, factor, self._do_step)
        for remedy in remedies.acting_on(self.version):
            remedy.after_step(lrs)

        # Tell remedies how the weights have changed, memory that two of them share only once.
        changes = [weight.detach() - old for weight, old in zip(told, before, strict=True)]
        for number in repeated_views(told):
            changes[number].zero_()
        for remedy in remedies.each:
            remedy.observe_update(lrs, changes)
        return lrs[0]

    def adopt_state(self, remembered: Sequence[Any], epoch: int, updates: int) -> None:
        """Continue from the state of optimizers that had these weights among others.

        Args:
            remembered: State of each weight, in order; None if it has no state.
            epoch: Epoch that the scheduler continues in.
            updates: Number of updates that the weights have seen.
        """
        if self.optimizer is not None:
            states = {n: state for n, state in enumerate(remembered) if state is not None}
            _load(self.optimizer, self.optimizer.state_dict() | {"state": states})
        self._epoch, self.version = epoch, updates
        counted = updates - self._scheduler_start
        for _ in range(epoch if self._scheduler_unit == "epoch" else counted):
            if self.scheduler is not None:
                self.scheduler.step()

    def mismatches(self, state: dict[str, Any], label: str) -> list[str]:
        """Return one line for each reason why a state is not one of this updater."""
        saved, wanted = " and ".join(state["kinds"]), " and ".join(self._class_names)
        if saved != wanted:
            return [f"{label}: updated by {saved}, wanted {wanted}"]
        if self.optimizer is None or "param_groups" not in state["optimizer"]:
            return []  # some optimizers have a state of another form
        then, now = (
            [len(group["params"]) for group in groups]
            for groups in (state["optimizer"]["param_groups"], self.optimizer.param_groups)
        )
        if then != now:
            return [f"{label}: groups of {then} parameters in the optimizer, wanted {now}"]
        return []

    @property
    def _class_names(self) -> list[str]:
        return [type(part).__name__ for part in (self.optimizer, self.scheduler)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer and scheduler, accumulated gradients, and counters."""
        return {
            "kinds": self._class_names,
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "given_groups": self.given_groups,
            "gathered": self.accumulator.state_dict(),
            "late_sums": [] if self._late is None else self._late.state_dict(),
            "epoch": self._epoch,
            "version": self.version,
            "losses": [list(pair) for pair in self._losses.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an updater of the same weights."""
        if self.optimizer is not None:
            _load(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.given_groups = state["given_groups"]
        self.accumulator.load_state_dict(state["gathered"])
        if self._late is not None:
            self._late.load_state_dict(state["late_sums"])
        self._epoch, self.version = state["epoch"], state["version"]
        self._losses = {epoch: loss for epoch, loss in state["losses"]}


def _plain_values(optimizer: Optimizer | None) -> list[dict[str, Any]]:
    """Return the numbers and texts of each group of an optimizer, such as its rate."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, given in group.items()
            for value in [given.tolist() if isinstance(given, Tensor) else given]
            if name != "params" and isinstance(value, int | float | str | list | tuple)
        }
        for group in groups
    ]


def copy_numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return all of a group of an optimizer but its weights, with copies of its tensors.

    Schedulers write into a rate that is a tensor, so that no two optimizers may share one.
    """
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _load(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimizer, whose tensors keep their types.

    PyTorch gives all but ``step`` the type of their weight, so that `NAdam` multiplies in
    another precision than before, and masks become numbers. It also moves NAdam's product to
    the GPU, and each step would then wait for it.
    """
    optimizer.load_state_dict(state)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    saved = state.get("state", {})  # some optimizers have a state of another form
    for number, weight in enumerate(weights):
        now, then = optimizer.state.get(weight, {}), saved.get(number, {})
        for name in now.keys() & then.keys() - {"step"}:
            on_host = name == "mu_product" and not optimizer.defaults.get("capturable")
            types, wanted = ([t.dtype for t in tensors(each[name])] for each in (now, then))
            if on_host or types != wanted:
                device = "cpu" if on_host else weight.device
                move = partial(Tensor.to, device=device, copy=True)
                now[name] = map_tensors(move, then[name])


def _step_scaled(
    optimizer: Optimizer, factor: float, do: Callable[[Optimizer], None]
) -> list[float]:
    """Do one step at scaled learning rates, and return them.

    They are put back afterwards: many schedulers compute the next rate from the last one.

    Raises:
        OptionError: The optimizer asks for a closure.
        Exception: The optimizer raised it.
    """
    # Scale the rates of all groups.
    groups = optimizer.param_groups
    lrs = [group["lr"] for group in groups] if factor != 1 else []
    for group, lr in zip(groups, lrs, strict=False):
        group["lr"] = lr * factor
    used = [float(group["lr"]) for group in groups]

    # Do the step.
    try:
        do(optimizer)
    except Exception as error:
        if "closure" not in str(error):
            raise
        raise OptionError(f"{type(optimizer).__name__} {NEEDS_CLOSURE}") from error
    finally:
        for group, lr in zip(groups, lrs, strict=False):
            group["lr"] = lr
    return used
