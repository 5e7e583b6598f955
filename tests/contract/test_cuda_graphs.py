"""Recorded and replayed actions give the bits of computed ones, on memory that lasts.

The recorder here needs no GPU: see `contract.tape`. What it shows holds for CUDA graphs but for
CUDA itself, which `contract.test_gpu` tries.
"""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from contract.small import LINEARIZE, conv, data, mlp, sgd, skips
from contract.tape import TapeRecorder
from contract.test_late_check import WAYS
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import METHODS, parse_method
from hocket.stage.graphs import build as graphs
from hocket.stage.graphs.runner import ReplayRunner
from hocket.tree import tensors

BATCHES = 12
LOCKSTEP = [way for way in WAYS if not parse_method(way).free_running]
ACCUMULATED = [f"{name}:accumulate=3" for name in ("adl", "gpipe", "paci") if name in METHODS]
HELD = [way for way in ("fdg:hold=true", "pipedream-2bw") if way.split(":")[0] in METHODS]


@pytest.fixture(autouse=True)
def recorders(monkeypatch):
    """Recorders of the stages and of the steps, in the order in which they are built."""
    built = []

    def build_recorder(device):
        built.append(TapeRecorder())
        return built[-1]

    monkeypatch.setattr(graphs, "build_recorder", build_recorder)
    return built


def build(method, network=mlp, stages=3, *, replays=True, rate=0.05, **options):
    rate = 1e-3 if "dni" in method else rate
    layers = network(stages, dropout=0.3)
    return Trainer(
        layers,
        method=method,
        optimizer=partial(sgd, lr=rate),
        check_every=10**6,
        cuda_graphs=replays,
        **options,
    )


def losses_of(trainer, batches):
    return [str(trainer.step(*batch)) for batch in batches]


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.filterwarnings("ignore:.*(changes nothing|learns from targets)")
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("network", [mlp, conv, skips])
@pytest.mark.parametrize("method", [*LOCKSTEP, *ACCUMULATED])
def test_replays_have_the_bits_of_what_is_computed(method, network, stages, recorders):
    batches = data(network, BATCHES)
    if network is skips and not parse_method(method).signal.needs_gradient:
        pytest.skip("its signal needs one tensor, and several cross the edges")
    computed, replayed = build(method, network, stages, replays=False), None
    losses = losses_of(computed, batches)
    replayed = build(method, network, stages)
    assert losses_of(replayed, batches) == losses
    assert same(computed, replayed)
    assert sum(recorder.replays for recorder in recorders) > stages
