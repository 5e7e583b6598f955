"""Trainings of replicas with local updates on real data, with the curve of the test loss."""

import math
from itertools import islice
from typing import Any

from benchmarks.harness.run_workload import RunWorkload
from benchmarks.peers.local_updates import LocalReplicas, LocalUpdates
from hocket.training.fit.interrupt import Interrupt


def train_replicas(
    work: RunWorkload, local: LocalUpdates, interrupt: Interrupt
) -> list[dict[str, Any]] | None:
    """Train replicas in this process; return the test loss of their mean at each evaluation.

    Args:
        work: The run, whose batches are shared by the replicas.
        local: The replicas.
        interrupt: Signals that end the training.

    Returns:
        Points with ``updates`` and ``test_loss``, up to a loss that is not finite; None if the
        training was stopped.
    """
    config = work.config
    replicas = LocalReplicas(work.initial_network(), local, work.optimizer)
    batches = islice(work.batches(multiple=local.processes), config.updates)
    curve: list[dict[str, Any]] = []
    for done, batch in enumerate(batches, start=1):
        if interrupt.asked:
            return None
        replicas.step(*batch)
        if done % config.evaluate_every == 0:
            loss = work.test_loss([network.state_dict() for network in replicas.networks])
            if not math.isfinite(loss):
                break
            curve.append({"updates": done, "test_loss": loss})
    return curve
