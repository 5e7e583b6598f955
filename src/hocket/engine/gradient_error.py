"""The error of delayed gradients: their angle to the true ones, batch by batch.

The true gradient of a batch belongs to the whole network's loss at the weights that all stages
have at the beginning of the tick in which a stage uses its late gradient (compare the error
tracking of PETRA, ICLR 2025). Where a group of batches leaves the pipeline before the next one
enters, it is that at the weights of the whole group, before the first stage updates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hocket.engine.event import Event, add_place
from hocket.errors import OptionError, Problems
from hocket.methods.method import Method
from hocket.options.ranges import wrong_counts
from hocket.options.require import wrong_functions
from hocket.program.action import Action, Tick
from hocket.signals.losses import compute_loss
from hocket.stage.stage import Stage
from hocket.stage.weight_copies.forward_state import forward_without_buffer_updates
from hocket.tree import Tree, copy_tensors, map_tensors


@dataclass(frozen=True)
class GradientError:
    """One late gradient compared with the true one.

    Attributes:
        stage: Number of the stage.
        batch: Number of the batch.
        cosine: Cosine of the angle between the two, over all weights of the stage.
        ratio: Norm of the late gradient over the norm of the true one.
    """

    stage: int
    batch: int
    cosine: float
    ratio: float


GradientErrorListener: TypeAlias = Callable[[GradientError], None]


class GradientErrorMeter:
    """Compares the gradients of every n-th batch in a serial engine.

    The true gradient is taken before the tick, so that it does not matter which stage updates
    first. It costs a forward and a backward of the whole network for each tick in which a
    compared batch is back-propagated.

    Args:
        every: Compare every batch whose number this divides.
        listener: Called with each comparison.
    """

    def __init__(self, every: int, listener: GradientErrorListener) -> None:
        self.stages: Sequence[Stage] = ()  # known once the engine is built
        self._every = every
        self._listener = listener
        self._batches: dict[int, tuple[Tree, Tree]] = {}
        self._true: dict[int, dict[int, Tensor]] = {}  # by batch and stage, for its backward
        self._missing: dict[int, int] = {}  # stages whose gradient of a batch is still to come

    def enter(self, batch: int, inputs: Tree, targets: Tree) -> None:
        """Keep a batch that is to be compared.

        Args:
            batch: Number of the batch.
            inputs: Its inputs, with tensors of shape (B, ...).
            targets: Its targets.
        """
        if batch % self._every == 0:
            self._batches[batch] = inputs, targets
            self._missing[batch] = len(self.stages)

    def state_dict(self) -> dict[str, Any]:
        """Return the batches that are still to be compared, as plain values."""
        return {
            "batches": dict(self._batches),
            "true": {batch: dict(gradients) for batch, gradients in self._true.items()},
            "missing": dict(self._missing),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batches of another meter, if it had any."""
        weights = (p for stage in self.stages for p in stage.module.parameters())
        device = next((weight.device for weight in weights), torch.device("cpu"))
        self._batches = map_tensors(lambda t: t.to(device), dict(state.get("batches", {})))
        self._true = dict(state.get("true", {}))
        self._missing = dict(state.get("missing", {}))

    def before(self, number: int, tick: Tick, *, flushed: bool) -> None:
        """Compute the true gradients of the batches that a tick back-propagates.

        Args:
            number: Number of the tick.
            tick: Its actions.
            flushed: True if its batches leave the pipeline before others enter.

        Raises:
            DataError: A batch does not fit the network or its loss, as in training.
        """
        backwards = [a for a in tick if a.kind == "B" and a.batch in self._batches]
        due = [a for a in backwards if a.stage not in self._true.get(a.batch, {})]
        for batch in {action.batch for action in due}:
            stages = [self.stages[a.stage] for a in due if a.batch == batch]
            if flushed:  # the last stage, which is first to update, has not yet
                stages = list(self.stages)
            loss = self._loss_again(number, batch)

            # Weights that are frozen now have no gradient.
            trained = {stage.index: _trained(stage) for stage in stages}
            weights = [w for group in trained.values() for w in group if w.requires_grad]
            flat = torch.autograd.grad(loss, weights, allow_unused=True) if weights else ()
            found = dict(zip(weights, flat, strict=True))
            self._true[batch] = {
                index: _flat([found.get(weight) for weight in group], group)
                for index, group in trained.items()
            }

    def __call__(self, event: Event, stage: Stage) -> None:
        """Compare a gradient as soon as its backward is done."""
        batch = event.action.batch
        if event.action.kind != "B" or batch not in self._batches:
            return
        true = self._true[batch].pop(stage.index)
        if not event.report.skipped:
            trained = _trained(stage)
            late = _flat(stage.gradients[: len(trained)], trained)  # without a head's
            product = late.norm() * true.norm()
            self._listener(
                GradientError(
                    stage=stage.index,
                    batch=batch,
                    cosine=float(late @ true / product) if product else 0.0,
                    ratio=float(late.norm() / true.norm()) if true.norm() else float("inf"),
                )
            )
        self._missing[batch] -= 1
        if not self._missing[batch]:
            del self._batches[batch], self._true[batch], self._missing[batch]

    def _loss_again(self, number: int, batch: int) -> Tensor:
        """Return the loss of a batch at the present weights, a scalar with its graph."""
        value, targets = self._batches[batch]
        try:
            for stage in self.stages:
                action = Action("F", stage.index, batch)
                with stage.core.contexts.computing(batch, "forward"):
                    copies = copy_tensors(value)
                    value = forward_without_buffer_updates(stage.module, copies)
            # With the random numbers and in the precision of the backward of the last stage.
            action = Action("B", stage.index, batch)
            with stage.core.contexts.computing(batch, "backward"):
                return compute_loss(stage.core.setup.loss, value, targets)
        except Exception as error:
            add_place(error, action, number)
            raise


def _trained(stage: Stage) -> list[nn.Parameter]:
    """Return the weights of the layers that the stage was built to train."""
    layers = set(stage.module.parameters())
    return [weight for weight in stage.updater.parameters if weight in layers]


def _flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Return all gradients as one vector (D,) in float64, zeros for those that are None."""
    parts = [torch.zeros(0, dtype=torch.float64, device="cpu")]
    for gradient, weight in zip(gradients, like, strict=True):
        dense = torch.zeros_like(weight) if gradient is None else gradient.to_dense()
        plain = dense.detach().resolve_conj()
        real = torch.view_as_real(plain) if plain.is_complex() else plain
        parts.append(real.cpu().double().flatten())
    return torch.cat(parts)


def build_error_meter(
    method: Method, every: int, listener: GradientErrorListener | None, precision: str
) -> GradientErrorMeter | None:
    """Build the meter for the gradients of every n-th batch; return None if none is wanted.

    Args:
        method: The method.
        every: Compare every batch whose number this divides; 0 for none.
        listener: Called with each comparison.
        precision: Precision of the training.

    Raises:
        OptionError: A number or a listener is of another kind or alone, stages run freely, or
            there is no true gradient in this precision.
    """
    Problems(wrong_functions(on_gradient_error=listener)).raise_together("")
    if wrong_counts(0, every=every) or bool(every) != bool(listener):
        raise OptionError(
            f"gradient_error_every is {every!r}; give a number of batches and, as both belong "
            "together, on_gradient_error as well, or neither"
        )
    if every and method.free_running:
        raise OptionError(
            f"gradient_error_every compares gradients tick by tick, but the stages of method "
            f"{method.name!r} run freely; leave it at 0"
        )
    if every and precision == "fp16":
        raise OptionError(
            "gradient_error_every compares with gradients of the whole network, in which small "
            "numbers vanish with precision 'fp16'; leave it at 0, or use 'bf16' or 'fp32'"
        )
    return GradientErrorMeter(every, listener) if listener is not None else None
