"""Replicas in one process beside a naive transcription of local SGD and DiLoCo."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from benchmarks.peers.local_updates import LocalReplicas, LocalUpdates
from unit.benchmarks.small_workloads import exact

STEPS = 5  # two outer steps after every two inner ones, and an inner one after them
ADAM = "AdamW:lr=0.01,weight_decay=0.1"


def naive(work, settings):
    """Return the weights of each replica after arXiv 2311.08105, algorithm 1."""
    shared = work.build_network()
    momentum = [torch.zeros_like(weight) for weight in shared.parameters()]
    replicas = [copy.deepcopy(shared) for _ in range(work.stages)]
    inner = [work.optimizer(list(replica.parameters())) for replica in replicas]
    inputs, targets = work.example_batch()
    size = work.batch // work.stages
    for taken in range(1, STEPS + 1):
        for number, replica in enumerate(replicas):
            own = slice(number * size, (number + 1) * size)
            inner[number].zero_grad()
            nn.functional.cross_entropy(replica(inputs[own]), targets[own]).backward()
            inner[number].step()
        if taken % settings.steps:
            continue
        with torch.no_grad():
            for place, weight in enumerate(shared.parameters()):
                moved = [list(replica.parameters())[place] for replica in replicas]
                change = sum(weight - own for own in moved) / len(moved)
                momentum[place] = settings.outer_momentum * momentum[place] + change
                way = change + settings.outer_momentum * momentum[place]
                weight.sub_(settings.outer_lr * way)
                for own in moved:
                    own.copy_(weight)
    return [[weight.detach() for weight in replica.parameters()] for replica in replicas]


def require_close(network, wanted):
    for one, other in zip(network.parameters(), wanted, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [LocalUpdates(3, 1, 2), LocalUpdates(3, 1, 2, 0.7, 0.9), LocalUpdates(3, 1, 1, 0.5)],
    ids=["local SGD", "DiLoCo", "each step"],
)
def test_replicas_of_one_process_train_as_in_the_paper(settings):
    work = dataclasses.replace(exact(stages=3), rule=ADAM)
    replicas = LocalReplicas(work.build_network(), settings, work.optimizer)
    for _ in range(STEPS):
        replicas.step(*work.example_batch())
    wanted = naive(work, settings)
    for network, own in zip(replicas.networks, wanted, strict=True):
        require_close(network, own)


def test_local_sgd_with_an_outer_step_after_each_inner_one_is_data_parallelism():
    work = dataclasses.replace(exact(), rule="SGD:lr=0.1")
    plain = work.build_network()
    step = work.loop_step(plain, work.batches())
    replicas = LocalReplicas(work.build_network(), LocalUpdates(2, 1, 1), work.optimizer)
    for _ in range(STEPS):
        step()
        replicas.step(*work.example_batch())
    for network in replicas.networks:
        require_close(network, [weight.detach() for weight in plain.parameters()])


def test_replicas_keep_their_buffers_and_inner_states():
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(60, 10)).double()
    work = dataclasses.replace(exact(), rule=ADAM)
    replicas = LocalReplicas(network, LocalUpdates(2, 1, 1), work.optimizer)
    replicas.step(*work.example_batch())
    first, second = replicas.networks
    require_close(first, [weight.detach() for weight in second.parameters()])
    assert not torch.equal(first[0].running_mean, second[0].running_mean)
    moments = [
        next(iter(optimizer.state.values()))["exp_avg"] for optimizer in replicas.optimizers
    ]
    assert not torch.equal(*moments)
