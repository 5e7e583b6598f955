"""Trainings in worlds of several processes, many of them in one launch, and what they leave."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

from contract.processes import in_processes
from contract.small import conv, coupled, data, everything, mlp, sgd, skips, wide
from contract.spoiled import brittle
from hocket import Checkpoints, Trainer
from hocket.checkpoint.directory import read_manifest
from hocket.methods import METHODS
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_staleness
from hocket.remedies import Remedy
from hocket.training.callback import Callback
from hocket.training.results.metrics import EpochResult
from hocket.transport.processes import backends

NETS = {"mlp": mlp, "conv": conv}
MORE_NETS = NETS | {
    "wide": wide,
    "skips": skips,
    "brittle": brittle,
    "everything": everything,
    "coupled": coupled,
}


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
    direct: bool = False
    optimizer: Callable[..., torch.optim.Optimizer] = sgd
    step: int = 1
    spoiled: tuple[tuple[int, float], ...] = ()  # batches, and what begins each of their inputs
    budget: tuple[tuple[str, int], ...] = ()  # of `fit`, in the place of epochs
    profile: tuple[int, ...] = ()  # staleness of each stage
    remedies: tuple[Remedy, ...] = ()
    stopped_by: int | None = None  # stage whose process asks to stop in epoch 1
    ignored: int = 0  # samples at the start of each batch whose targets are ignored
    shuffled: bool = False  # by PyTorch's generator, which the main process also uses itself

    def build_method(self) -> Method:
        """Its method with all that is said of it."""
        method = METHODS[self.method](**dict(self.options)).with_remedies(*self.remedies)
        return with_staleness(method, self.profile) if self.profile else method

    def __str__(self) -> str:
        others = ("profile", "spoiled", "remedies", "direct", "stopped_by", "ignored")
        told = [*self.options, *self.trainer, *self.budget]
        told += [(n, v) for n in others if (v := getattr(self, n)) != getattr(Case, n)]
        return "-".join([self.method, self.net, *(f"{name}={value}" for name, value in told)])


def distinct(cases: Iterable[Case]) -> list[Case]:
    """Cases without those that are trained as an earlier one, by a method of another name."""
    found: dict[object, Case] = {}
    for case in cases:
        table = replace(case.build_method(), name="", paper="")
        rest = replace(case, method="", options=(), remedies=(), profile=())
        found.setdefault((table, rest), case)
    return list(found.values())


@dataclass
class Left:
    """What a training leaves behind in one process."""

    history: list[dict[str, Any]]
    weights: list[torch.Tensor]
    optimizers: dict[int, Any] = field(default_factory=dict)
    evaluations: list[tuple[int, str]] = field(default_factory=list)
    events: dict[int, list[str]] = field(default_factory=dict)
    signals: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    checkpoints: list[str] = field(default_factory=list)
    ledgers: dict[int, dict[str, Any]] = field(default_factory=dict)
    uses: dict[int, dict[str, int]] = field(default_factory=dict)


class StopBy(Callback):
    """Asks to stop in epoch 1, in the process of a stage only; remembers checkpoints."""

    def __init__(self, stage: int | None, *, draws: bool) -> None:
        self.stage, self.draws, self.checkpoints = stage, draws, list[str]()

    def on_checkpoint(self, trainer: Trainer, folder: Path) -> None:
        read_manifest(folder)  # it is complete
        self.checkpoints.append(folder.name)

    def on_epoch(self, trainer: Trainer, result: EpochResult) -> None:
        trainer.state_dict()  # a look, which changes nothing
        if self.draws and trainer.is_main_process:
            torch.rand(1)
        if result.number == 1 and self.stage in [stage.index for stage in trainer.stages]:
            trainer.request_stop()


def trained(
    case: Case,
    stages: int,
    checkpoints: Checkpoints | None = None,
    resume: Path | None = None,
    batches: Any = None,
    epochs: int | None = None,
) -> Left:
    """Train in this process, or in its world; from a checkpoint, if one is given."""
    net = MORE_NETS[case.net]
    modules = net(stages, dropout=case.dropout)
    low = "precision" in dict(case.trainer)
    if low:  # autocast leaves float64 as it is
        modules = [module.float() for module in modules]
    # The synthesizers of DNI need small steps on networks as small as these.
    rate = 1e-4 if "dni" in case.method else 0.01
    events: dict[int, list[str]] = {}
    with Trainer(
        modules,
        method=case.build_method(),
        optimizer=partial(case.optimizer, lr=rate),
        scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=case.step, gamma=0.5),
        seed=3,
        watchers=[
            lambda event, _: events.setdefault(event.action.stage, []).append(str(event))
        ],
        **dict(case.trainer),
    ) as trainer:
        if resume is not None:
            trainer.resume(resume)
        if batches is None:
            batches = data(net, case.batches, case.size, last=case.last)
            for number, value in case.spoiled:
                batches[number][0][:, 0] = value
            for _, targets in batches:
                targets[: case.ignored] = -100
            if case.shuffled:
                batches = DataLoader(batches, batch_size=None, shuffle=True)
        tests = data(net, 3)
        if low:
            batches, tests = ([(x.float(), y) for x, y in each] for each in (batches, tests))
        evaluations: list[Any] = []
        callback = StopBy(case.stopped_by, draws=case.shuffled)
        every = "evaluate_every" in dict(case.budget)
        history = trainer.fit(
            batches,
            tests,
            **(dict(case.budget) or {"epochs": case.epochs if epochs is None else epochs}),
            progress=False,
            checkpoints=checkpoints,
            callbacks=[callback],
            on_evaluation=(lambda *seen: evaluations.append(seen)) if every else None,
        )
        return Left(
            evaluations=[(updates, str(result)) for updates, result in evaluations],
            history=[{**asdict(epoch), "seconds": 0.0} for epoch in history],
            weights=[value.cpu() for value in trainer.state_dict().values()],
            optimizers={
                stage.index: [
                    updater.optimizer.state_dict() if updater.optimizer else None
                    for updater in (stage.updater, stage.signal_updater)
                ]
                for stage in trainer.stages
            },
            events=events,
            signals={
                stage.index: [v.cpu() for v in stage.signal_network.state_dict().values()]
                for stage in trainer.stages
            },
            checkpoints=callback.checkpoints,
            ledgers={stage.index: vars(stage.send_stats) for stage in trainer.stages},
            uses={
                s.index: vars(s.receive_stats)
                for s in trainer.stages
                if s.receive_stats is not None
            },
        )


@contextmanager
def directly() -> Iterator[None]:
    """As if every process had a GPU of its own, with gloo in the place of NCCL."""
    own = f"gpu {torch.distributed.get_rank()}"
    with (
        patch.object(backends, "gpu_backend_name", lambda device: "gloo"),
        patch.object(backends, "_device_id", lambda device: own),
    ):
        yield


def _train_all(cases: Sequence[Case], stages: int) -> list[Left]:
    left = []
    for case in cases:
        with directly() if case.direct else nullcontext():
            left.append(trained(case, stages))
    return left


def trained_apart(
    cases: Sequence[Case], stages: int, replicas: int = 1
) -> dict[Case, list[Left]]:
    """What each training leaves behind in each process of its world."""
    left = in_processes(_train_all, list(cases), stages, processes=stages * replicas)
    return dict(zip(cases, map(list, zip(*left, strict=True)), strict=True))
