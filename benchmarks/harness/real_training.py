"""A training on real data as a baseline: one run over a link, to confirm a computed time."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining
from hocket.runs.build import (
    build_network,
    build_optimizer_factory,
    build_plan,
    build_run_method,
    build_scheduler_factory,
    load_data,
)
from hocket.runs.config import RunConfig
from hocket.training.trainer import Trainer
from hocket.transport.codecs import parse_codec


@dataclass(frozen=True, kw_only=True)
class RealPart(PreparedTraining):
    """One process of a training on real data.

    Attributes:
        test_loss: Evaluates the network on the test data, in all processes together.
    """

    test_loss: Callable[[], float]


@dataclass(frozen=True)
class RealTraining:
    """A method on as many processes as there are stages, with data, rate and schedule of a run.

    Attributes:
        config: The run, whose plan names its cuts.
        threads: PyTorch threads in each process.
    """

    config: RunConfig
    threads: int

    @property
    def processes(self) -> int:
        """Number of processes, one for each stage."""
        return self.config.stages

    def describe(self) -> dict[str, Any]:
        """Return the method and its extra delay."""
        return {"method": self.config.method, "extra_delay": self.config.extra_delay}

    def prepare(self, workload: Workload, rank: int) -> RealPart:
        """Prepare the stage of this process; every process reads the same batches."""
        config = self.config
        data = load_data(config)
        trainer = Trainer(
            build_network(config, data),
            stages=build_plan(config),
            method=build_run_method(config),
            optimizer=build_optimizer_factory(config),
            scheduler=build_scheduler_factory(config),
            scheduler_unit=config.scheduler_unit,
            codec=parse_codec(config.codec),
            seed=config.seed,
        )
        batches = chain.from_iterable(repeat(data.train))
        inputs, _ = next(iter(data.test))
        trainer.prepare(inputs)
        (stage,) = trainer.stages
        return RealPart(
            step=lambda: trainer.step(*next(batches)),
            samples=config.batch_size,
            weights=dict(stage.module.named_parameters()),
            recorder=stage.recorder,
            test_loss=lambda: trainer.evaluate(data.test).loss,
        )


def query_test_loss(training: PreparedTraining) -> float:
    """Query: return the test loss of a training on real data."""
    assert isinstance(training, RealPart), "only trainings on real data have one"
    return training.test_loss()
