"""Networks of other libraries are cut evenly and train as if uncut, or are refused in words."""

import copy
import re
import warnings

import pytest
import torch

from contract.library_networks import CASES, Case
from contract.small import sgd
from hocket import BP, FDG, HocketError, Trainer
from hocket.tree import map_tensors, tensors


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=[f"{case.name}-{case.make_inputs.__name__}-{n}" for n, case in enumerate(CASES)],
)
def test_a_network_is_cut_evenly_and_one_step_is_that_of_the_network(case: Case):
    pytest.importorskip("transformers")
    network = case.build()
    inputs = case.make_inputs()
    plain = copy.deepcopy(network)
    trainer = Trainer(network, stages=2, method=BP(), loss=sum_of_squares, optimizer=sgd)
    with warnings.catch_warnings(record=True, action="always") as caught:
        if case.refused:
            with pytest.raises(HocketError, match=case.refused):
                trainer.step(inputs, None)
            return
        trainer.step(inputs, torch.zeros(2))
    told = [str(entry.message) for entry in caught if "mean work" in str(entry.message)]
    assert bool(told) == bool(case.uneven), told
    assert all(re.search(case.uneven, text, re.DOTALL) for text in told)
    rounded = [str(entry.message) for entry in caught if "rounding" in str(entry.message)]
    assert not rounded, rounded
    optimizer = sgd(plain.parameters())
    sum_of_squares(plain(**inputs), None).backward()
    optimizer.step()
    torch.testing.assert_close(network.state_dict(), plain.state_dict(), rtol=0, atol=0)


FEW = ("GPT2", "Llama", "ViTForImage", "ResNet")


@pytest.mark.parametrize(
    "case",
    {c.name: c for c in CASES if c.name.startswith(FEW)}.values(),
    ids=lambda case: case.name,
)
def test_late_gradients_of_batches_of_any_size_reach_every_weight(case: Case):
    """On three stages, which were cut with a batch of two inputs."""
    network, inputs = case.build(), case.make_inputs()
    trainer = Trainer(network, stages=3, method=FDG(), loss=sum_of_squares, optimizer=sgd)
    trainer.prepare(inputs)
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    for _ in range(4):
        trainer.step(map_tensors(lambda value: value.repeat_interleave(2, 0), inputs), None)
    trainer.finish()
    moved = [n for n, w in network.named_parameters() if not torch.equal(w, before[n])]
    assert moved == list(before)


def sum_of_squares(output, targets):
    return sum(t.square().mean() for t in tensors(output) if t.requires_grad)
