"""The rehearsal of a stage measures the time and memory of its training."""

import copy
from statistics import fmean, median

import pytest
import torch
from torch import nn

from contract.small import METHODS, Coupled
from hocket.errors import HocketError
from hocket.methods import build_method
from hocket_lab.planner import rehearse
from hocket_lab.planner.rehearsals import Candidate, rehearse_candidates, rehearse_together
from hocket_lab.planner.tensor_memory import LiveTensorMemory

BATCH, WIDTH = 32, 64
FLOAT = 4


def build_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(2)
        ]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 5))


NETWORK = build_network()


def build_workload():
    return NETWORK, torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.long)


@pytest.mark.parametrize("name", METHODS)
def test_every_stage_of_every_method_has_time_and_memory(name):
    (stages,) = rehearse_candidates(build_workload, [Candidate(name, ("1.0", "2"))])
    method = build_method(name)
    before = copy.deepcopy(NETWORK.state_dict())
    assert len(stages) == 3
    for k, stage in enumerate(stages):
        kinds = {kind for kind, seconds in stage.seconds.items() if seconds}
        assert kinds == {"F", "B", "U"} | (
            {"T"} if method.signal.learns_from_gradient and k < 2 else set()
        )
        has_auxiliary = method.signal.learns_from_gradient or not method.signal.needs_gradient
        layers = FLOAT * (WIDTH**2 if k < 2 else 5 * (WIDTH + 1))
        assert (stage.weight_bytes > layers) == (has_auxiliary and k < 2)
        assert layers <= stage.trainable_bytes <= stage.weight_bytes  # heads have buffers
        assert stage.optimizer_bytes >= FLOAT * WIDTH * 5
        assert stage.peak_bytes > stage.weight_bytes + stage.optimizer_bytes
        assert stage.received_bytes == FLOAT * BATCH * WIDTH
    assert all(torch.equal(v, before[n]) for n, v in NETWORK.state_dict().items())
    assert all(weight.grad is None for weight in NETWORK.parameters())


def test_frozen_weights_and_buffers_are_counted_apart():
    def build_frozen():
        layers = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.BatchNorm1d(WIDTH)
        return nn.Sequential(*layers, nn.Linear(WIDTH, 5)), *build_workload()[1:]

    (stages,) = rehearse_candidates(build_frozen, [Candidate("fdg", ("2",))])
    norm = FLOAT * 2 * WIDTH
    assert stages[0].trainable_bytes == norm
    assert stages[0].weight_bytes == FLOAT * WIDTH * (WIDTH + 1) + 2 * norm + 8  # its counter


def test_an_input_that_travels_is_counted():
    def build_images():
        layers = [nn.Conv2d(2, 2, 1) for _ in range(3)]
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5))
        return network, torch.randn(BATCH, 2, 4, 4), torch.zeros(BATCH, dtype=torch.long)

    method = "dgl:infopro=[1,1,1,1],reach=2"
    (stages,) = rehearse_candidates(build_images, [Candidate(method, ("1", "2", "3"))])
    image = FLOAT * BATCH * 2 * 4 * 4
    assert [stage.sent_bytes for stage in stages] == [2 * image, 2 * image, image, 0]


@pytest.mark.parametrize(("codec", "each", "scale"), [("int8", 1, FLOAT), ("bf16", 2, 0)])
def test_packets_are_as_large_as_their_codec_makes_them(codec, each, scale):
    names = [codec, "vq:groups=4,codes=16"]
    candidates = [Candidate("fdg", ("1.0", "2"), codec=name) for name in names]
    stages, learned = rehearse_candidates(build_workload, candidates)
    numbers = BATCH * WIDTH
    assert [stage.received_bytes for stage in stages] == [FLOAT * numbers] * 3
    sizes = [(stage.sent_bytes, stage.returned_bytes, stage.packet_bytes) for stage in stages]
    assert sizes == [(each * numbers + scale,) * 3] * 2 + [(0,) * 3]
    assert learned[0].sent_bytes < FLOAT * numbers == learned[0].returned_bytes


def test_graphs_in_flight_and_old_weights_are_held():
    fdg, bp = rehearse_candidates(
        build_workload, [Candidate(name, ("1.0", "2")) for name in ("fdg", "bp")]
    )
    activation, weights = FLOAT * BATCH * WIDTH, FLOAT * WIDTH**2
    difference = [one.peak_bytes - other.peak_bytes for one, other in zip(fdg, bp, strict=True)]
    # Four graphs instead of one: each holds the received tensor and the output.
    assert difference[0] == 3 * 2 * activation
    # Two graphs instead of one, each with a copy of its weights.
    assert difference[1] == 2 * activation + 2 * weights
    assert fdg[2].peak_bytes == bp[2].peak_bytes


def test_a_stage_that_inverts_is_as_large_at_any_delay():
    def build_reversible():
        layers = nn.Sequential(*(Coupled(WIDTH) for _ in range(2)), nn.Linear(WIDTH, 5))
        return layers, *build_workload()[1:]

    names = ["petra", "petra:forward_delay=3", "dsp", "dsp:forward_delay=3"]
    found = rehearse_candidates(build_reversible, [Candidate(name, ("2",)) for name in names])
    short, long, kept, long_kept = (stages[0] for stages in found)
    activation = FLOAT * BATCH * WIDTH
    assert [stages[0].inverts for stages in found] == [True, True, False, False]
    assert long.peak_bytes == short.peak_bytes
    assert long_kept.peak_bytes == kept.peak_bytes + 2 * activation
    # Its output comes back with the gradient.
    assert long.packet_bytes == 1.5 * kept.packet_bytes == 1.5 * activation
    with pytest.raises(HocketError, match="no reverse"):
        rehearse_candidates(build_workload, [Candidate("petra", ("2",))])


@pytest.mark.parametrize(
    ("name", "idles"), [("fdg", [1, 2, 1]), ("dgl", [0, 1, 1])], ids=["fdg", "dgl"]
)
def test_with_idle_a_stage_sleeps_before_it_receives_a_packet(name, idles, monkeypatch):
    candidates = [Candidate(name, ("1.0", "2")), Candidate(name, ())]
    slept = []
    monkeypatch.setattr(rehearse.time, "sleep", slept.append)
    rehearse_candidates(build_workload, candidates, with_idle=True)
    ticks = 2 * rehearse.REPETITIONS  # each is rehearsed twice
    assert slept == [rehearse.IDLE_S] * (sum(idles) * ticks)
    slept.clear()
    rehearse_candidates(build_workload, candidates)
    assert not slept


def test_each_stage_is_timed_twice_and_jitter_is_relative_to_the_mean():
    (stages,) = rehearse_candidates(build_workload, [Candidate("bp", ("2",))])
    for stage in stages:
        assert len(stage.seconds["F"]) == 2 * rehearse.REPETITIONS
        assert stage.jitter["T"] == ()
        for kind in "FBU":
            seconds = stage.seconds[kind]
            assert median(seconds) == stage.median_s(kind)
            assert stage.jitter[kind] == pytest.approx([s / fmean(seconds) for s in seconds])


def test_several_processes_rehearse_the_same():
    candidates = [Candidate("bp", ("2",)), Candidate("dgl", ("2",))]
    together = rehearse_together(build_workload, candidates, processes=2, threads=1)
    alone = rehearse_candidates(build_workload, candidates)
    for stages, same_stages in zip(together, alone, strict=True):
        for stage, same in zip(stages, same_stages, strict=True):
            assert stage.peak_bytes == same.peak_bytes
            assert stage.seconds.keys() == same.seconds.keys()
            assert min(stage.seconds["B"]) > 0


def test_memory_counts_once_and_until_it_is_freed():
    excluded = torch.ones(100)
    with LiveTensorMemory(excluded) as memory:
        a = torch.ones(8)
        view = a[:4]
        assert memory.live_bytes == 32
        del a
        assert memory.live_bytes == 32
        del view
        assert memory.live_bytes == 0
        excluded.add_(1)
        kept = torch.empty(5, device="meta")
        assert kept.shape == (5,)
        assert (memory.live_bytes, memory.peak_bytes) == (0, 32)
        copy = excluded.untyped_storage().clone()
        assert memory.live_bytes == 400
        del copy
        assert memory.live_bytes == 0
