"""What the serial engine and a plain loop are timed on: the same network and the same batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim

from benchmarks.harness.cuts import paper_cut
from hocket import zoo
from hocket.losses import cross_entropy
from hocket.methods.method import Method
from hocket.options import Named
from hocket.partition import Plan
from hocket.training.trainer import Trainer
from hocket.transport.codecs import Codec

Step = Callable[[], float | None]
"""One step of training on the batch; gives a loss."""

PLAIN = "plain"
"""The row that is the plain loop itself; beside another plain loop it shows the noise."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step of training, up to the method.

    Attributes:
        network: Name in the zoo, with options if need be.
        shape: One input, without the batch.
        batch: Samples in a step.
        stages: K, cut as the paper did where there is one, else balanced.
        threads: Of PyTorch.
        channels_last: Memory format.
        rate: Learning rate of SGD with momentum 0.9; small, as the batch is always the same.
        vocab: Different tokens, where inputs are tokens and not numbers.
    """

    network: str
    shape: tuple[int, ...]
    batch: int
    stages: int
    threads: int
    channels_last: bool
    rate: float = 0.01
    vocab: int | None = None

    def batch_of_noise(self) -> tuple[Tensor, Tensor]:
        """The batch: inputs (B, *shape) and targets (B,) of 10 classes; always the same.

        Tokens (B, T) have targets (B, T), the next ones.
        """
        chance = torch.Generator().manual_seed(0)
        if self.vocab is not None:
            (length,) = self.shape
            text = torch.randint(0, self.vocab, (self.batch, length + 1), generator=chance)
            return text[:, :-1].clone(), text[:, 1:].clone()
        inputs = torch.randn(self.batch, *self.shape, generator=chance)
        targets = torch.randint(0, 10, (self.batch,), generator=chance)
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, targets

    def initial(self) -> nn.Module:
        """The network at its initial weights, always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            chosen = Named.parse(self.network)
            return zoo.create_fitted(
                chosen.name, self.shape, self.vocab or 10, **chosen.options
            )

    def in_format(self) -> nn.Module:
        """The network at its initial weights, in its memory format."""
        network = self.initial()
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def optimizer(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """The optimizer of both sides."""
        return optim.SGD(parameters, lr=self.rate, momentum=0.9)

    def plain(self) -> Step:
        """A loop as anyone writes it, which reads the loss to show it."""
        network = self.in_format()
        return self.loop(network, self.batch_of_noise())

    def loop(self, network: nn.Module, batch: tuple[Tensor, Tensor]) -> Step:
        """That loop over a given network and batch."""
        optimizer = self.optimizer(list(network.parameters()))
        inputs, targets = batch

        def step() -> float:
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(network(inputs), targets)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def trainer(
        self,
        method: Method,
        plan: Plan | None = None,
        *,
        codec: Codec | None = None,
        checksum: bool = True,
        trace: bool = False,
        resumable: bool = False,
    ) -> Trainer:
        """A trainer whose stages are built, cut by a plan or else as :func:`cut` does."""
        trainer = Trainer(
            self.initial(),
            stages=plan or paper_cut(self.network, self.stages),
            method=method,
            optimizer=lambda parameters: self.optimizer(list(parameters)),
            channels_last=self.channels_last,
            record_timeline=trace,
            codec=codec,
            checksum=checksum,
            resumable=resumable,
        )
        trainer.prepare(self.batch_of_noise()[0])
        return trainer

    def decoupled(self, trainer: Trainer) -> Step:
        """A step of a trainer."""
        inputs, targets = self.batch_of_noise()
        return lambda: trainer.step(inputs, targets)

    def until_full(self, method: Method) -> int:
        """Steps until the pipeline is full and an update has been made."""
        return method.delay(0, self.stages) + self.stages + method.accumulate

    def parameters(self) -> int:
        """Numbers that the network learns."""
        return sum(math.prod(p.shape) for p in self.initial().parameters())


def extra_parameters(trainer: Trainer) -> int:
    """Numbers that heads and synthesizers learn beside the network."""
    networks = [stage.signal_network for stage in trainer.stages]
    return sum(p.numel() for network in networks for p in network.parameters())
