"""Options of a training as all of its stages read them, checked in one place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field
from numbers import Integral
from typing import Any

import torch

from hocket.codecs.codec import Codec
from hocket.codecs.registry import as_codec
from hocket.codecs.stateless import Exact
from hocket.distributed.replicas.meet import as_meet
from hocket.errors import Problems
from hocket.methods.method import Method
from hocket.optim.factory import OptimizerFactory, wrong_factories
from hocket.options.common_options import Compiler
from hocket.options.require import wrong_functions
from hocket.signals.losses import Loss, cross_entropy, option_of
from hocket.stage.training_options import TrainingOptions
from hocket.stage.update.clipping import as_clipping
from hocket.stage.update.loss_scale import FIRST_SCALE, LossScale

_FORMS: Mapping[str, Callable[[Any], object]] = {
    "clip": lambda value: str(as_clipping(value)),
    "codec": lambda value: Exact() if value is None else as_codec(value),
    "compile": lambda value: "inductor" if value is True else value or None,
    "meet": lambda value: None if as_meet(value) is None else value,
    "gradient_error_every": lambda value: int(value) if isinstance(value, Integral) else value,
    "skip_batches": lambda value: frozenset(value) if isinstance(value, Iterable) else value,
}
"""Options that users may write in several forms, and the form in which stages read them."""


@dataclass(frozen=True, kw_only=True)
class Setup(TrainingOptions):
    """Options of a training and its method, loss, optimizer and device, all of them checked.

    Attributes:
        method: The method.
        loss: The objective of the last stage, and of auxiliary heads.
        optimizer: Builds the optimizer of a stage from its parameters.
        device: Device of the stages of this process.
        found: Problems found before; one error lists them and those found here.

    Raises:
        OptionError: With every option that has a wrong value or contradicts another.
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    found: InitVar[Sequence[str]] = ()
    # Options that stages read in one form, and not as users may write them.
    evaluation_loss: Loss = cross_entropy
    codec: Codec = field(default_factory=Exact)
    compile: Compiler | None = None
    stage_speeds: tuple[float, ...] | None = None
    skip_batches: frozenset[int] = frozenset()

    def __post_init__(self, found: Sequence[str]) -> None:
        problems = Problems(found)
        # Bring each option into the form in which stages read it.
        for name, form in _FORMS.items():
            object.__setattr__(self, name, problems.attempt(form, getattr(self, name)))
        # Check each option, and the plain ones together.
        problems += self.find_problems()
        problems += wrong_functions(loss=self.loss, evaluation_loss=self.evaluation_loss)
        problems += wrong_factories(self.optimizer, self.scheduler)
        if self.skip_batches and isinstance(self.skip_batches, frozenset):
            problems += [
                f"skip_batches has {batch!r}; batches are numbered from 0"
                for batch in self.skip_batches
                if isinstance(batch, int) and batch < 0
            ]
            if self.replicas > 1:
                problems.append(
                    f"{self.replicas} replicas share each batch, and do not agree on which to "
                    "skip; leave skip_batches out, or use one replica"
                )
            if self.method.free_running:
                problems.append(
                    f"the stages of method {self.method.name!r} run freely, and each numbers "
                    "its batches for itself; leave skip_batches out"
                )
        if option_of(self.loss, "reduction") == "sum" and self.replicas > 1:
            problems.append(
                f"loss has reduction 'sum', but {self.replicas} replicas add up their losses "
                "as means over their parts of each batch; use 'mean', or one replica"
            )
        if self.method.free_running and self.replicas > 1:
            problems.append(
                f"the stages of method {self.method.name!r} run freely, and have no replicas; "
                "leave replicas at 1"
            )
        if self.precision == "fp16" and self.method.signal.learns_from_gradient:
            problems.append(
                f"precision is 'fp16', and method {self.method.name!r} predicts gradients, "
                "whose numbers are too small for float16; use 'bf16', or another method"
            )
        if self.method.linearize == "invert":
            low = self.precision != "fp32"
            problems += [
                f"method {self.method.name!r} inverts stages, and {why}; leave {name} out"
                for name, is_set, why in (
                    ("precision", low, "16 bits are too few for the inverse"),
                    ("compile", self.compile, "what is compiled has no inverse"),
                    ("cuda_graphs", self.cuda_graphs, "no input stays where it was captured"),
                )
                if is_set
            ]
        problems.raise_together("these options are impossible")

    def graph_delay(self, stage: int, stages: int) -> int:
        """Return the delay for which a stage linearizes; 0 if a plain graph is enough.

        Where sums over replicas are late, a last stage may forward with moved weights, too.
        """
        moves = any(remedy.moves == "forward" for remedy in self.method.remedies)
        moved = moves and self.replica_delay > 0
        return self.method.graph_delay(stage, stages) or int(moved)

    @property
    def ticks_per_check(self) -> int:
        """Batches of a stage after which it looks for NaN and infinity.

        By default one where the numbers are at hand, or where a batch has to be skipped before
        it is learned from; otherwise a device would wait for the host at each look.
        """
        if self.check_every is not None:
            return self.check_every
        skips = self.on_nan == "skip" or self.precision == "fp16"
        return 1 if skips or (self.device.type == "cpu" and not self.cuda_graphs) else 50

    def autocast(self) -> torch.autocast:
        """Return the context manager of the precision to compute in."""
        low = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, low, enabled=self.precision != "fp32")

    def without_callers_autocast(self) -> AbstractContextManager[object]:
        """Return a context manager in which the caller's autocast has no effect."""
        is_on = torch.is_autocast_enabled(self.device.type)
        return torch.autocast(self.device.type, enabled=False) if is_on else nullcontext()

    def build_loss_scale(self) -> LossScale:
        """Build the scale of the backward of one stage, which float16 needs."""
        return LossScale(FIRST_SCALE if self.precision == "fp16" else 1.0)
