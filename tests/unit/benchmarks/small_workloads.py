"""Small workloads and baselines, in a module that the processes of a row can import."""

import dataclasses
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining
from hocket.partition.costs.profile import LayerCost
from hocket.runs.build import build_optimizer_factory
from hocket.runs.config import RunConfig
from hocket.zoo.layer import Layer


@dataclass(frozen=True, kw_only=True)
class Exact(Workload):
    """A workload in double precision without BatchNorm: all ways to split a batch are equal."""

    network: str = "own"
    batch: int = 12
    threads: int = 1
    rule: str = "SGD:lr=0.01,momentum=0.9"

    def optimizer(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        return build_optimizer_factory(RunConfig(optimizer=self.rule))(parameters)

    def example_batch(self) -> tuple[Tensor, Tensor]:
        inputs, targets = super().example_batch()
        return inputs.double(), targets

    def initial_network(self) -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build_layers().double()

    def build_layers(self) -> nn.Sequential:
        """Return layers whose outputs are maps, which end in a view, and a layer of scores."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (inputs, outputs) in enumerate(((3, 6), (6, 4), (4, 5), (5, 4), (4, 3))):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1)
            layers[f"conv{number}"] = Layer(conv, nn.Tanh(), nn.PixelShuffle(1))
        layers["head"] = Layer(nn.Flatten(), nn.Linear(3 * 5 * 4, 10))
        return nn.Sequential(layers)


class Vectors(Exact):
    """The same with vectors as inputs."""

    def build_layers(self) -> nn.Sequential:
        layers = [Layer(nn.Linear(6, 6), nn.Tanh(), nn.Flatten()) for _ in range(5)]
        return nn.Sequential(*layers, nn.Linear(6, 10))


def even_profile(layers: Any, sample: Any) -> dict[str, LayerCost]:
    """Return equal costs of all layers, instead of measuring them."""
    return {name: LayerCost(1.0, 2.0, 8, kept_bytes=0, weight_bytes=8) for name in layers}


def exact(*, stages: int = 2, channels_last: bool = True) -> Exact:
    """Build a workload on maps."""
    return Exact(shape=(3, 5, 4), stages=stages, channels_last=channels_last)


def vectors() -> Exact:
    return Vectors(shape=(6,), stages=2, channels_last=False)


def weights(training: PreparedTraining) -> dict[str, list[Any]]:
    """Query: return the parameters and buffers that a process has."""
    return {name: weight.tolist() for name, weight in training.state.items()}


@dataclass(frozen=True)
class WholeTraining:
    """Query: take all steps of a training, and complete the batches in flight."""

    steps: int

    def __call__(self, training: PreparedTraining) -> None:
        for _ in range(self.steps):
            training.step()
        training.finish()


def processor_s(_: PreparedTraining) -> float:
    """Query: return the processor time of a process."""
    return time.process_time()


def stumble(_: PreparedTraining) -> None:
    """Query that fails."""
    raise ArithmeticError("no answer")


@dataclass(frozen=True)
class Fails:
    """A baseline whose last process fails."""

    silently: bool = False
    processes: int = 2
    threads: int = 1

    def describe(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        if rank == self.processes - 1:
            if self.silently:
                os._exit(3)
            raise ArithmeticError("one over nothing")
        torch.distributed.barrier()
        raise AssertionError("the others never come")
