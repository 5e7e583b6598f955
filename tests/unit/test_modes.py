"""Looking at a network leaves it as it was."""

import pytest
from torch import nn

from hocket.modes import evaluation_mode


def network():
    """Training, but with one layer that its user has frozen in evaluation mode."""
    built = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    built[1][0].eval()
    return built


def flags(*modules):
    return [layer.training for module in modules for layer in module.modules()]


def test_inside_every_layer_evaluates_and_afterwards_each_is_as_it_was():
    first, second = network(), network().eval()
    before = flags(first, second)
    with evaluation_mode(first, second):
        assert not any(flags(first, second))
    assert flags(first, second) == before
    assert flags(first) == [True, True, True, False, True]


def test_an_error_inside_changes_nothing_of_that():
    built = network()
    before = flags(built)
    with pytest.raises(RuntimeError, match="inside"), evaluation_mode(built):
        raise RuntimeError("inside")
    assert flags(built) == before


def test_a_module_given_twice_is_restored_too():
    built = network()
    before = flags(built)
    with evaluation_mode(built, built[1]):
        assert not any(flags(built))
    assert flags(built) == before
