"""Trainings in worlds of several processes, many of them in one launch, and what they leave."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from contract.small import conv, data, mlp, sgd
from hocket import Trainer, world
from hocket.launch import launch
from hocket.methods import METHODS

NETS = {"mlp": mlp, "conv": conv}


@dataclass(frozen=True)
class Case:
    """One training: which method and network, and what its trainer is told beside."""

    method: str
    net: str = "mlp"
    options: tuple[tuple[str, Any], ...] = ()
    trainer: tuple[tuple[str, Any], ...] = ()
    epochs: int = 2
    size: int = 4
    last: int = 2
    dropout: float = 0.3
    batches: int = 7

    def __str__(self) -> str:
        told = (f"{name}={value}" for name, value in (*self.options, *self.trainer))
        return "-".join([self.method, self.net, *told])


@dataclass
class Left:
    """What a training leaves behind in one process."""

    history: list[dict[str, Any]]
    weights: list[torch.Tensor]
    optimizers: dict[int, Any] = field(default_factory=dict)
    events: dict[int, list[str]] = field(default_factory=dict)


def trained(case: Case, stages: int) -> Left:
    """Train in this process, or in its world."""
    net = NETS[case.net]
    modules = net(stages, dropout=case.dropout)
    # The synthesizers of DNI need small steps on networks as small as these.
    rate = 1e-4 if "dni" in case.method else 0.01
    events: dict[int, list[str]] = {}
    trainer = Trainer(
        modules,
        method=METHODS[case.method](**dict(case.options)),
        optimizer=partial(sgd, lr=rate),
        scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
        seed=3,
        watchers=[
            lambda event, _: events.setdefault(event.action.stage, []).append(str(event))
        ],
        **dict(case.trainer),
    )
    batches = data(net, case.batches, case.size, last=case.last)
    history = trainer.fit(batches, data(net, 3), epochs=case.epochs, progress=False)
    return Left(
        history=[{**asdict(epoch), "seconds": 0.0} for epoch in history],
        weights=[value for module in modules for value in module.state_dict().values()],
        optimizers={
            stage.index: [
                updater.optimizer.state_dict() if updater.optimizer else None
                for updater in (stage.updater, stage.signal_updater)
            ]
            for stage in trainer.stages
        },
        events=events,
    )


def _work(folder: str, cases: Sequence[Case], stages: int) -> int:
    for number, case in enumerate(cases):
        left = trained(case, stages)
        torch.save(left, Path(folder) / f"{number}-{torch.distributed.get_rank()}.pt")
        world.part()
    return 0


def trained_apart(
    cases: Sequence[Case], stages: int, replicas: int = 1
) -> dict[Case, list[Left]]:
    """What each training leaves behind in each process of its world."""
    count = stages * replicas
    with tempfile.TemporaryDirectory() as folder:
        assert launch(_work, folder, list(cases), stages, processes=count, threads=1) == 0
        return {
            case: [
                torch.load(Path(folder) / f"{number}-{rank}.pt", weights_only=False)
                for rank in range(count)
            ]
            for number, case in enumerate(cases)
        }
