"""Evaluation mode is restored layer by layer, and training mode keeps what is frozen."""

from contextlib import suppress

from torch import nn

from contract.small import Network
from hocket.modes import TrainingMode, evaluation_mode, training_mode


def network():
    """Build a network in training mode with one layer that is frozen in evaluation mode."""
    built = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    built[1][0].eval()
    return built


def flags(*modules):
    return [layer.training for module in modules for layer in module.modules()]


def test_every_layer_is_in_evaluation_mode_and_then_as_before():
    """Also after an error, and if a module is given twice."""
    first, second = network(), network().eval()
    before = flags(first, second)
    with suppress(ZeroDivisionError), evaluation_mode(first, second, first[1]):
        assert not any(flags(first, second))
        raise ZeroDivisionError
    assert flags(first, second) == before
    assert flags(first) == [True, True, True, False, True]


def test_a_train_of_its_own_is_asked_again_and_layers_that_were_frozen_stay_so():
    class Backbone(Network):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    backbone = Backbone(norm=nn.BatchNorm1d(2), head=nn.Linear(2, 2))
    built = nn.Sequential(backbone, nn.Dropout())
    built[0].head.eval()
    TrainingMode(built).enter()
    assert flags(built) == [True, True, False, False, True]
    assert list(dict(built.named_modules())) == ["", "0", "0.norm", "0.head", "1"]


def test_a_layer_may_have_a_train_that_wants_its_mode():
    class Strict(nn.Linear):
        def train(self, mode):
            return super().train(mode)

    built = nn.Sequential(Strict(2, 2))
    TrainingMode(built).enter()
    assert all(flags(built))
    built[0].train(False)
    built.training = False
    with training_mode(built):
        assert all(flags(built))
