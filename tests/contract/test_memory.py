"""Between two ticks, stages hold the batches in flight, packets under way, and nothing else."""

import gc

import pytest
import torch
from torch import Tensor, nn

from benchmarks.harness.allocations import trace_allocations
from contract.small import Coupled
from hocket import Trainer
from hocket.methods import METHODS, parse_method

BATCH, WIDTH, LAYERS, STAGES = 4096, 32, 2, 3
TENSOR = BATCH * WIDTH * 4
"""Bytes of an activation; weights and targets take a hundredth of that."""
CASES = [
    # The buffer of a free stage holds as many batches as have come, up to its size.
    *(name for name, build in METHODS.items() if not build().free_running),
    *("fdg:linearize=live", "fdg:linearize=recompute", "fdg:order=forward-first"),
    "fdg:forward_delay=2,backward_delay=3",
    "adl:hold=double,accumulate=4",
    *("gpipe:recompute=true", "1f1b:recompute=true", "1f1b:accumulate=2"),
    "petra:forward_delay=3,backward_delay=2",
    *("fdg+predict(direction=last)", "fdg:linearize=live+t2", "fdg:linearize=live+compensate"),
]


def build_trainer(method):
    """Every layer keeps its output for its backward, which is the input of the next one."""

    def build_stage():
        if method.linearize == "invert":
            return nn.Sequential(*(Coupled(WIDTH) for _ in range(LAYERS)))
        layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        return nn.Sequential(*(module for pair in layers for module in pair))

    return Trainer(
        [build_stage() for _ in range(STAGES)],
        method=method,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e-6),
    )


def tensors_held(method, batches):
    """Number of activations and gradients that are kept after so many batches, by hand.

    An output that is sent is kept by its graph, too, and an input is the output of the stage
    before; a tensor that two stages know counts once.
    """
    delays = [method.delay(stage, STAGES) for stage in range(STAGES)]
    if method.flushes:
        return tensors_held_in_a_group(method, batches % method.accumulate, delays)
    under_way = sum(method.edge_delay(edge)[0] for edge in range(STAGES - 1))
    if not method.signal.needs_gradient:
        return under_way
    gradients = sum(method.edge_delay(edge)[1] for edge in range(STAGES - 1))
    if method.linearize == "recompute":
        return sum(delays) + under_way + gradients
    if method.linearize == "invert":  # each gradient comes with its activation
        return under_way + 2 * gradients
    return delays[0] + LAYERS * sum(delays) + gradients


def tensors_held_in_a_group(method, batches, delays):
    """The same after so many batches of a group that is flushed."""
    to_next, _ = method.edge_delay(0)
    forwards = [max(batches - stage * to_next, 0) for stage in range(STAGES)]
    backwards = [max(n - delay, 0) for n, delay in zip(forwards, delays, strict=True)]
    in_flight = [n - done for n, done in zip(forwards, backwards, strict=True)]
    gradients = backwards[-1] - backwards[0]
    if method.linearize == "recompute":
        return sum(in_flight) + forwards[0] - forwards[-1] + gradients
    return in_flight[0] + LAYERS * sum(in_flight) + gradients


@pytest.mark.parametrize("name", CASES)
def test_a_stage_holds_its_batches_in_flight_and_nothing_else(name):
    method = parse_method(name)
    trainer = build_trainer(method)

    def ticks():
        for _ in range(16):
            trainer.step(torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.long))
            yield

    held = [each.held / TENSOR for each in trace_allocations(ticks())][-4:]
    expected = [tensors_held(method, batches) for batches in range(13, 17)]
    # Heads and synthesizers are built with the first batch; each weight has a gradient, too.
    heads = [weight for stage in trainer.stages for weight in stage.signal_network.parameters()]
    tolerance = 1 + 2 * 4 * sum(weight.numel() for weight in heads) / TENSOR
    pairs = list(zip(expected, held, strict=True))
    assert all(least <= count < least + tolerance for least, count in pairs), pairs


@pytest.mark.parametrize("name", CASES)
def test_a_fit_keeps_no_tensor_of_a_batch_that_is_done(name):
    """Small ones among the large ones of later batches let the heap of a CPU grow."""
    trainer, alive = build_trainer(parse_method(name)), []

    def batches():
        for number in range(49):
            if number % 16 == 0:
                gc.collect()  # what other tests have left
                alive.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))
            yield torch.randn(2, WIDTH), torch.zeros(2, dtype=torch.long)

    trainer.fit(batches(), epochs=1, progress=False)
    assert alive[2] == alive[3]
