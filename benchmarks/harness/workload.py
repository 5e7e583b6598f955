"""The network and batch on which engines and baselines are timed."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn, optim

from hocket import zoo
from hocket.methods.method import Method
from hocket.options import Named
from hocket.partition import Plan
from hocket.runs.build import network_builder
from hocket.runs.config import RunConfig
from hocket.signals.losses import cross_entropy
from hocket.training.trainer import Trainer

Step = Callable[[], float | None]
"""One step of training on a batch; returns a loss."""
Batch = tuple[Tensor, Tensor]
"""Inputs (B, ...) and targets."""

PLAIN = "plain"
"""The row of the plain loop itself; compared with another plain loop it shows the noise."""


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Context manager that sets the number of PyTorch threads, and restores it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def paper_cut(network: str, stages: int) -> int | Plan:
    """Return the cut of the paper that used the network; if none did, the number of stages.

    >>> paper_cut("resnet20", stages=2), paper_cut("mlp", stages=2)
    (Plan(cuts=('layer2_1',), signature=''), 2)
    """
    name = Named.parse(network).name
    known = zoo.PLANS.get(name, {})
    return Plan(zoo.paper_plan(name, stages)) if stages in known else stages


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that determines a training step except the method.

    Attributes:
        network: Name in the zoo, or function of a module, with options.
        shape: Shape of one input, without the batch dimension.
        batch: Samples in a step.
        stages: Number of stages K, cut as in the paper that used the network, else balanced.
        threads: PyTorch threads.
        channels_last: Use the channels-last memory format.
        rate: Learning rate of SGD with momentum 0.9; small, as the batch is always the same.
        classes: Number of classes; for tokens, the size of the vocabulary.
        tokens: Inputs are tokens.
        compile: Compile the network of a plain loop as one graph, and the stages of a trainer.
    """

    network: str
    shape: tuple[int, ...]
    batch: int
    stages: int
    threads: int
    channels_last: bool
    rate: float = 0.01
    classes: int = 10
    tokens: bool = False
    compile: bool = False

    def example_batch(self) -> Batch:
        """Return inputs (B, *shape) and targets (B,), always the same.

        Tokens (B, T) have targets (B, T), the next tokens.
        """
        generator = torch.Generator().manual_seed(0)
        if self.tokens:
            (length,) = self.shape
            text = torch.randint(self.classes, (self.batch, length + 1), generator=generator)
            return text[:, :-1].clone(), text[:, 1:].clone()
        inputs = torch.randn(self.batch, *self.shape, generator=generator)
        targets = torch.randint(self.classes, (self.batch,), generator=generator)
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, targets

    def batches(self, multiple: int = 1) -> Iterator[Batch]:
        """Return the batches of a training, in order and without end: always the same one.

        Args:
            multiple: Number that divides the samples of each batch.
        """
        return repeat(self.example_batch())

    def network_and_batch(self) -> tuple[nn.Module, Tensor, Tensor]:
        """Return the network, inputs and targets, as a rehearsal builds them."""
        return (self.build_network(), *self.example_batch())

    def initial_network(self) -> nn.Module:
        """Return the network at its initial weights, always the same."""
        build = network_builder(RunConfig(network=self.network))
        return build(self)  # type: ignore[arg-type] # as data with this shape and these classes

    def build_network(self) -> nn.Module:
        """Return the network at its initial weights, in its memory format."""
        network = self.initial_network()
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def optimizer(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """Build the optimizer, the same for engines and baselines."""
        return optim.SGD(parameters, lr=self.rate, momentum=0.9)

    def plain_step(self) -> Step:
        """Build a step of a plain PyTorch loop, which reads the loss."""
        network = self.build_network()
        return self.loop_step(network, self.batches())

    def loop_step(
        self, network: nn.Module, batches: Iterator[Batch], *, reads_loss: bool = True
    ) -> Step:
        """Build a step of a plain PyTorch loop over a given network and its batches.

        Args:
            network: The network.
            batches: A batch for each step, on the device of the network.
            reads_loss: Return the loss, for which the device has to complete all its work.
        """
        optimizer = self.optimizer(list(network.parameters()))

        # A function, as of `network.compile()` only the blocks of a chain are compiled, one by
        # one: PyTorch leaves out the forward of `nn.Sequential` itself.
        def whole_forward(inputs: Tensor) -> Any:
            return network(inputs)

        forward = torch.compile(whole_forward, dynamic=False) if self.compile else network

        def step() -> float | None:
            inputs, targets = next(batches)
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(forward(inputs), targets)
            loss.backward()
            optimizer.step()
            return loss.item() if reads_loss else None

        return step

    def build_trainer(
        self,
        method: Method,
        plan: Plan | None = None,
        device: torch.device | None = None,
        **options: Any,
    ) -> Trainer:
        """Build a trainer and its stages.

        Args:
            method: The method.
            plan: The cut; `paper_cut` chooses it if it is None.
            device: The device; the processor if it is None.
            options: More options of `Trainer`.
        """
        trainer = Trainer(
            self.initial_network(),
            stages=plan or paper_cut(self.network, self.stages),
            method=method,
            **self.trainer_options(),
            channels_last=self.channels_last,
            device=device,
            compile=self.compile,
            **options,
        )
        trainer.prepare(self.example_batch()[0])
        return trainer

    def trainer_options(self) -> dict[str, Any]:
        """Return the options of `Trainer` by which it updates as the plain loop does."""
        return {"optimizer": lambda parameters: self.optimizer(list(parameters))}

    def trainer_step(self, trainer: Trainer) -> Step:
        """Build a step of a trainer."""
        batches = self.batches()
        return lambda: trainer.step(*next(batches))

    def warmup_steps(self, method: Method) -> int:
        """Return the number of steps until the pipeline is full and an update has been made."""
        return method.delay(0, self.stages) + self.stages + method.accumulate

    def parameter_count(self) -> int:
        """Return the number of parameters of the network."""
        return sum(math.prod(p.shape) for p in self.initial_network().parameters())


def count_extra_parameters(trainer: Trainer) -> int:
    """Return the number of parameters of heads and synthesizers."""
    networks = [stage.signal_network for stage in trainer.stages]
    return sum(p.numel() for network in networks for p in network.parameters())
