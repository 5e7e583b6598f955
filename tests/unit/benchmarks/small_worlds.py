"""Work and peers small enough for tests; here, where the processes of a row can import them."""

import dataclasses
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.workload import Workload
from benchmarks.peers import Training
from hocket.zoo.layer import Layer


@dataclass(frozen=True, kw_only=True)
class Exact(Workload):
    """Work in double precision on a network without BatchNorm: order of sums aside, all ways
    to split a batch do the same."""

    def batch_of_noise(self) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch_of_noise()
        return inputs.double(), targets

    def initial(self) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.network_of().double()

    def network_of(self) -> nn.Sequential:
        """Layers that give maps, one of which ends in a view, then the scores."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (inputs, outputs) in enumerate(((3, 6), (6, 4), (4, 5), (5, 4), (4, 3))):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1)
            layers[f"conv{number}"] = Layer(conv, nn.Tanh(), nn.PixelShuffle(1))
        layers["head"] = Layer(nn.Flatten(), nn.Linear(3 * 5 * 4, 10))
        return nn.Sequential(layers)


class Vectors(Exact):
    """The same on vectors."""

    def network_of(self) -> nn.Sequential:
        layers = [Layer(nn.Linear(6, 6), nn.Tanh(), nn.Flatten()) for _ in range(5)]
        return nn.Sequential(*layers, nn.Linear(6, 10))


def exact(*, stages: int = 2, channels_last: bool = True) -> Exact:
    """Work on maps."""
    return Exact(
        network="own",
        shape=(3, 5, 4),
        batch=12,
        stages=stages,
        threads=1,
        channels_last=channels_last,
    )


def vectors() -> Exact:
    """Work on vectors."""
    return Vectors(
        network="own", shape=(6,), batch=12, stages=2, threads=1, channels_last=False
    )


def weights(training: Training) -> dict[str, list[Any]]:
    """The question for the numbers that a process trains."""
    return {name: weight.tolist() for name, weight in training.weights.items()}


def processor_s(_: Training) -> float:
    """The question for the time a process has worked."""
    return time.process_time()


def stumble(_: Training) -> None:
    """A question that nobody can answer."""
    raise ArithmeticError("no answer")


@dataclass(frozen=True)
class Fails:
    """A peer whose last process does not get as far as the others."""

    silently: bool = False
    processes: int = 2
    threads: int = 1

    def about(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def prepare(self, work: Workload, rank: int) -> Training:
        if rank == self.processes - 1:
            if self.silently:
                os._exit(3)
            raise ArithmeticError("one over nothing")
        torch.distributed.barrier()
        raise AssertionError("the others never come")
