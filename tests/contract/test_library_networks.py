"""Networks of transformers are cut evenly and train as if uncut, or are refused in words."""

import copy
import re
import warnings

import pytest
import torch

from contract.library_networks import CASES, Case
from hocket import BP, HocketError, Trainer
from hocket.tree import tensors

pytest.importorskip("transformers")

every = pytest.mark.parametrize(
    "case",
    CASES,
    ids=[f"{case.name}-{case.make_inputs.__name__}-{n}" for n, case in enumerate(CASES)],
)


@every
def test_a_network_is_cut_evenly_and_one_step_is_that_of_the_network(case: Case):
    network = case.build()
    inputs = case.make_inputs()
    plain = copy.deepcopy(network)
    trainer = Trainer(network, stages=2, method=BP(), loss=sum_of_squares, optimizer=sgd)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.refused:
            with pytest.raises(HocketError, match=case.refused):
                trainer.step(inputs, None)
            return
        trainer.step(inputs, torch.zeros(2))
    told = [str(entry.message) for entry in caught if "mean work" in str(entry.message)]
    assert bool(told) == bool(case.uneven), told
    assert all(re.search(case.uneven, text, re.DOTALL) for text in told)
    optimizer = sgd(plain.parameters())
    sum_of_squares(plain(**inputs), None).backward()
    optimizer.step()
    for (name, value), other in zip(
        network.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name


def sum_of_squares(output, targets):
    return sum(t.square().mean() for t in tensors(output) if t.requires_grad)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)
