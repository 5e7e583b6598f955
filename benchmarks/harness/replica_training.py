"""Trainings of replicas with local updates on real data, with the curve of the test loss."""

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.local_updates import LocalReplicas, LocalUpdates
from hocket.data import Data
from hocket.modes import evaluation_mode
from hocket.runs.build import (
    build_network,
    build_optimizer_factory,
    build_scheduler_factory,
    load_data,
)
from hocket.runs.config import RunConfig
from hocket.signals.losses import cross_entropy
from hocket.training.interrupt import Interrupt


def train_replicas(
    config: RunConfig, local: LocalUpdates, interrupt: Interrupt
) -> list[dict[str, Any]] | None:
    """Train replicas in this process; return the test loss of their mean at each evaluation.

    Args:
        config: Data, network, optimizer, and a scheduler of updates, as for `hocket train`; a
            batch is shared by the replicas.
        local: The replicas.
        interrupt: Signals that end the training.

    Returns:
        Points with ``updates`` and ``test_loss``, up to a loss that is not finite; None if the
        training was stopped.
    """
    data = load_data(config)
    build_scheduler = build_scheduler_factory(config)
    replicas = LocalReplicas(
        build_network(config, data), local, build_optimizer_factory(config)
    )
    schedulers = [build_scheduler(each) for each in replicas.optimizers if build_scheduler]
    curve: list[dict[str, Any]] = []
    for done, batch in enumerate(_endless(data, local.processes, config.updates), start=1):
        if interrupt.asked:
            return None
        replicas.step(*batch)
        for scheduler in schedulers:
            scheduler.step()
        if done % config.evaluate_every == 0:
            loss = test_loss(replicas.mean_network(), data)
            if not torch.isfinite(loss):
                break
            curve.append({"updates": done, "test_loss": loss.item()})
    return curve


@torch.no_grad()
def test_loss(network: nn.Module, data: Data) -> Tensor:
    """Return the mean loss over all targets of the test data."""
    total, targets_seen = torch.zeros(()), 0
    with evaluation_mode(network):
        for inputs, targets in data.test:
            total += cross_entropy(network(inputs), targets) * targets.numel()
            targets_seen += targets.numel()
    return total / targets_seen


def _endless(data: Data, parts: int, updates: int) -> Iterator[Any]:
    """Return batches for these updates; one that has no equal parts is left out."""
    batches = chain.from_iterable(repeat(data.train))
    return islice((batch for batch in batches if len(batch[0]) % parts == 0), updates)
