"""Parts of a stage have the names that the user knows them by."""

import math

import pytest
import torch
from torch import nn

from contract.small import sgd
from hocket import Trainer
from hocket.errors import NonFiniteError
from hocket.stage.layers.module_tensors import NetworkNames


def test_what_the_network_has_is_named_as_there():
    """Also a layer that was put into the place of another one."""
    block = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    network = nn.Sequential(nn.ReLU(), block, nn.Linear(2, 1))
    names, stage = NetworkNames(network), nn.Sequential(*network[1:])
    wanted = ["", "1", "1.0", "1.1", "2"]
    assert [name for name, _ in names.of_layers(stage)] == wanted
    assert [name for name, _ in names.of_parameters(stage)] == [
        name for name, _ in network.named_parameters()
    ]
    assert [name for name, _ in names.of_buffers(stage)] == [
        name for name, _ in network.named_buffers()
    ]
    block[1] = nn.BatchNorm1d(2)
    assert [name for name, _ in names.of_layers(stage)] == wanted


@pytest.mark.parametrize("check_every", [1, 2])
def test_a_fault_behind_a_cut_of_a_sequence_names_the_weight_of_the_network(check_every):
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.BatchNorm1d(2))
    options = {"method": "fdg", "optimizer": sgd, "check_every": check_every}
    trainer = Trainer(network, stages=2, **options)
    batches = [(torch.randn(4, 2), torch.zeros(4).long()) for _ in range(4)]
    trainer.prepare(batches[0][0])
    place = [stage.index for stage in trainer.stages if network[3] in stage.module.modules()]
    assert place == [1]
    with torch.no_grad():
        network[3].running_mean[0] = math.inf
    with pytest.raises(NonFiniteError, match=r"the buffer '3\.running_mean' became inf"):
        trainer.fit(batches, epochs=1, progress=False)


def test_weights_of_a_head_are_named_for_themselves():
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    trainer = Trainer(network, stages=2, method="dgl", optimizer=sgd)
    trainer.prepare(torch.randn(4, 2))
    with torch.no_grad():
        next(trainer.stages[0].signal_network.parameters()).fill_(math.nan)
    fault = trainer.stages[0].persistent_fault()
    assert fault == "weight 'signal of stage 0: trunk.0.weight' became nan"
