"""Parts from users: networks, lists of stages, loaders, losses, structures of tensors."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hocket
from hocket.errors import DataError


def sgd(weights, lr=0.1):
    return torch.optim.SGD(weights, lr=lr, momentum=0.5)


def points(count=256):
    """Return points in two dimensions, and the quadrants they lie in."""
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0) + 2 * (inputs[:, 1] > 0)


def layers():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(2, 32), nn.ReLU()),
        nn.Sequential(nn.Linear(32, 32), nn.ReLU()),
        nn.Linear(32, 4),
    ]


def test_a_sequential_on_a_data_loader_keeps_its_names_and_learns():
    data = TensorDataset(*points())
    network = nn.Sequential(*layers())
    names = list(network.state_dict())
    trainer = hocket.Trainer(network, stages=3, optimizer=sgd)
    history = trainer.fit(
        DataLoader(data, batch_size=16, shuffle=True),
        DataLoader(data, batch_size=64),
        epochs=6,
        progress=False,
    )
    assert history[-1].evaluation.error < 0.1
    assert history[-1].loss < history[0].loss
    assert trainer.network is network
    assert list(network.state_dict()) == names


def test_stages_of_a_module_that_is_no_chain():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = layers()

        def forward(self, x):
            return self.third(self.second(self.first(x)))

    network = Mine()
    parts = [network.first, network.second, network.third]
    trainer = hocket.Trainer(network, stages=parts, optimizer=sgd)
    inputs, targets = points()
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    trainer.fit(batches, epochs=6, progress=False)
    missed = network(inputs).argmax(1) != targets
    assert missed.float().mean() < 0.1
    assert next(iter(network.state_dict())) == "first.0.weight"


@pytest.mark.parametrize("wrong", [4, -1])
def test_class_numbers_out_of_range_are_refused_and_named(wrong):
    inputs, targets = points(8)
    targets[3] = wrong
    trainer = hocket.Trainer(layers(), optimizer=sgd)
    with pytest.raises(DataError, match=rf"target.*{wrong}"):
        trainer.fit([(inputs, targets)], epochs=1, progress=False)
