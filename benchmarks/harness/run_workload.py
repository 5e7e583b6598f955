"""The training of a run as the work of rows: its data, network, optimizer and schedule."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Self

from torch import nn, optim
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from benchmarks.harness.workload import Batch, Workload
from hocket.errors import OptionError
from hocket.options import Named
from hocket.runs.build import (
    build_optimizer_factory,
    build_scheduler_factory,
    load_data,
    network_builder,
)
from hocket.runs.config import RunConfig
from hocket.stage.update.clipping import as_clipping


@dataclass(frozen=True, kw_only=True)
class RunWorkload(Workload):
    """The training of a run, for methods and for baselines.

    Attributes:
        config: The run, of which a plain loop follows the network, data and batches, the
            optimizer and its schedule, clipping, seed and threads.
    """

    config: RunConfig

    @classmethod
    def of(cls, config: RunConfig, *, stages: int, threads: int) -> Self:
        """Return the work of a run.

        Args:
            config: The run.
            stages: Number of stages of methods, and of processes that share a batch.
            threads: PyTorch threads of each process.

        Raises:
            OptionError: A plain loop cannot have the optimizer of the run.
        """
        name = Named.parse(config.optimizer).name
        if name not in vars(optim) or name == "Muon":
            raise OptionError(
                f"the optimizer {name!r} asks for the names of weights; use another"
            )
        data = load_data(config)
        return cls(
            config=config,
            network=config.network,
            shape=tuple(data.shape),
            batch=config.batch_size,
            stages=stages,
            threads=threads,
            channels_last=False,
            classes=data.classes,
            tokens=data.kind == "tokens",
        )

    def batches(self, multiple: int = 1) -> Iterator[Batch]:
        """Return the batches of the run, pass by pass and without end.

        Args:
            multiple: Batches whose number of samples it does not divide are left out.
        """
        endless = chain.from_iterable(repeat(load_data(self.config).train))
        return (batch for batch in endless if len(batch[0]) % multiple == 0)

    def initial_network(self) -> nn.Module:
        """Return the network at the weights that the seed of the run decides."""
        return network_builder(self.config)(load_data(self.config))

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Build the optimizer of a plain loop; warm-up, clipping and scheduler are part of it.

        The gradient of its weights is clipped as a whole.
        """
        optimizer = build_optimizer_factory(self.config)(parameters)
        build_scheduler = build_scheduler_factory(self.config)
        schedule = _Schedule(
            parameters,
            clip=as_clipping(self.config.clip).norm,
            warmup=self.config.warmup_updates,
            scheduler=build_scheduler(optimizer) if build_scheduler else None,
        )
        optimizer.register_step_pre_hook(schedule.before_step)
        optimizer.register_step_post_hook(schedule.after_step)
        return optimizer

    def trainer_options(self) -> dict[str, Any]:
        """Return the options of `Trainer` that a run has for its updates."""
        names = ("scheduler_unit", "warmup_updates", "clip", "seed")
        return {
            "optimizer": build_optimizer_factory(self.config),
            "scheduler": build_scheduler_factory(self.config),
            **{name: getattr(self.config, name) for name in names},
        }


@dataclass
class _Schedule:
    """Warm-up, clipping and scheduler of a plain loop, around each step of its optimizer.

    Attributes:
        weights: The weights.
        clip: Largest norm of their gradient; infinity for none.
        warmup: Number W of first updates, of which number u (from 0) has (u + 1) / (W + 1) of
            the learning rate.
        scheduler: The scheduler, which counts the updates after them.
        update: Number of updates that have been made.
    """

    weights: list[nn.Parameter]
    clip: float
    warmup: int
    scheduler: LRScheduler | None
    update: int = 0

    def before_step(self, optimizer: Optimizer, *_: object) -> None:
        """Clip the gradient, and lower the learning rates in the warm-up."""
        if self.clip < math.inf:
            clip_grad_norm_(self.weights, self.clip)
        self._rates = [group["lr"] for group in optimizer.param_groups]
        factor = min(1.0, (self.update + 1) / (self.warmup + 1))
        for group in optimizer.param_groups:
            group["lr"] *= factor

    def after_step(self, optimizer: Optimizer, *_: object) -> None:
        """Give the learning rates back, and let the scheduler count."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        if self.scheduler is not None and self.update >= self.warmup:
            self.scheduler.step()
        self.update += 1
