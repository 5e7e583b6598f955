"""State that no checkpoint holds is told; an evaluation leaves that of a loss alone."""

import pytest
import torch
from torch import nn

from contract.small import data, mlp, sgd, stepped
from hocket import Trainer

BATCHES = data(mlp, 4)


def trainer_of(modules, **options):
    return Trainer(modules, optimizer=sgd, resumable=True, **options)


class Center(nn.Module):
    """Loss with a running mean of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3).double())

    def forward(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs - self.center, targets)
        if self.training:
            self.center = (self.center + outputs.detach().mean(0)) / 2
        return loss


class Extra(nn.Linear):
    def get_extra_state(self):
        return 1

    def set_extra_state(self, state):
        pass


def test_what_a_checkpoint_leaves_out_is_told(tmp_path):
    network = nn.Sequential(Extra(5, 5).double(), nn.Linear(5, 3).double())
    trainer = stepped(trainer_of(network, loss=Center()), BATCHES[:2])
    with pytest.warns(UserWarning, match="leave out buffer 'center' of the loss, the extra"):
        trainer.save(tmp_path)


def test_an_evaluation_leaves_the_state_of_a_loss_alone():
    loss = Center()
    trainer = stepped(trainer_of(mlp(2), loss=loss), BATCHES[:4])
    center = loss.center.clone()
    trainer.evaluate(BATCHES)
    assert torch.equal(loss.center, center)
    assert loss.training


class Weighted(nn.CrossEntropyLoss):
    """Loss of PyTorch under a name of the user's."""


def test_constants_of_a_loss_are_not_told(tmp_path):
    for loss in (Weighted(), Weighted(weight=torch.ones(3).double())):
        stepped(trainer_of(mlp(2), loss=loss), BATCHES[:2]).save(tmp_path / str(id(loss)))
