"""Stages whose late gradients would not be those asked for are refused by name."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.stage.compatibility import check_compatible


class Cell(nn.Module):
    """A stage with a recurrent layer named ``cell``."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(5, 5, batch_first=True)

    def forward(self, values):
        return self.cell(values[:, None])[0][:, 0]


def compiled() -> nn.Module:
    return nn.Sequential(torch.compile(nn.Linear(5, 5), backend="eager"))


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(5, 5)
    layer.compile(backend="eager")
    return nn.Sequential(layer)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 5)))


DERIVED = {
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 5))),
        r"layer '0' \(ParametrizedLinear\) computes with copies of its weights",
    ),
    "old weight norm": (old_weight_norm, r"layer '0' \(Linear\) computes with copies"),
    "old spectral norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(5, 5))),
        r"layer '0' \(Linear\) computes with copies",
    ),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5))),
        r"layer '0' \(ParametrizedLinear\) computes with copies",
    ),
    "lstm": (partial(Cell, nn.LSTM), r"layer 'cell' \(LSTM\) computes with copies"),
    "gru": (partial(Cell, nn.GRU), r"layer 'cell' \(GRU\) computes with copies"),
}


@pytest.mark.parametrize(("build", "text"), DERIVED.values(), ids=DERIVED.keys())
def test_live_refuses_layers_that_compute_with_copies_of_their_weights(build, text):
    with pytest.raises(OptionError, match=text) as caught:
        check_compatible(build(), "live", 1, 2, "fp32")
    assert "stage 2 is not compatible with linearize='live'" in str(caught.value)
    assert "use linearize='recompute' or 'stash'" in str(caught.value)
    check_compatible(build(), "stash", 1, 2, "fp32")
    check_compatible(build(), "recompute", 1, 2, "fp32")


@pytest.mark.parametrize("build", [compiled, compiled_in_place])
@pytest.mark.parametrize("linearize", ["stash", "live"])
def test_compiled_layers_are_refused(linearize, build):
    with pytest.raises(OptionError, match=r"layer '0' is compiled") as caught:
        check_compatible(build(), linearize, 1, 0, "fp32")
    assert "use linearize='recompute'" in str(caught.value)
    check_compatible(build(), "recompute", 1, 0, "fp32")


def test_the_advice_for_a_compiled_layer_is_not_refused_as_well():
    with pytest.raises(OptionError) as caught:
        check_compatible(compiled(), "live", 1, 0, "fp32")
    assert "'stash'" not in str(caught.value)


def test_a_compiled_stage_is_named_as_the_stage():
    with pytest.raises(OptionError, match="the stage is compiled"):
        check_compatible(torch.compile(nn.Linear(5, 5), backend="eager"), "stash", 1, 0, "fp32")


def test_live_refuses_low_precision():
    with pytest.raises(OptionError, match="precision 'bf16' computes with copies"):
        check_compatible(nn.Linear(5, 5), "live", 1, 0, "bf16")
    check_compatible(nn.Linear(5, 5), "stash", 1, 0, "bf16")


def test_all_layers_in_the_way_are_told_at_once():
    module = nn.Sequential(nn.LSTM(5, 5), parametrizations.weight_norm(nn.Linear(5, 5)))
    with pytest.raises(OptionError) as caught:
        check_compatible(module, "live", 1, 0, "bf16")
    assert all(part in str(caught.value) for part in ["layer '0'", "layer '1'", "'bf16'"])


@pytest.mark.parametrize("linearize", ["stash", "live", "recompute"])
def test_without_delay_everything_is_allowed(linearize):
    check_compatible(Cell(nn.LSTM), linearize, 0, 0, "bf16")


def test_a_trainer_checks_stages_with_delay_before_it_trains():
    (x, _), *_ = data(mlp, 1)
    first, last = mlp(2)
    recurrent = Cell(nn.LSTM).double()
    method = FDG(linearize="live")
    with pytest.raises(OptionError, match="stage 0 is not compatible with linearize='live'"):
        Trainer([recurrent, last], method=method, optimizer=sgd).prepare(x)
    Trainer([first, nn.Sequential(recurrent, last)], method=method, optimizer=sgd).prepare(x)
