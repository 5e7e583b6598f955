"""Laws of stages that compute their inputs from their outputs (PETRA)."""

import pytest
import torch
from torch import nn

from contract.small import (
    ORDERS,
    SGD,
    Coupled,
    Network,
    coupled,
    data,
    different,
    far,
    mlp,
    outcome,
    sgd,
    stepped,
    train,
)
from hocket import Trainer, cross_entropy
from hocket.errors import LinearizeError, OptionError
from hocket.methods import DSP, PETRA
from reference import petra

several_stages = pytest.mark.parametrize("stages", [2, 3, 4])


@several_stages
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_petra_is_its_reference(accumulate, order, stages):
    """Bit-equal: the same kernels in the same order."""
    batches, modules = data(coupled, 12, last=3), coupled(stages)
    choices = {"accumulate": accumulate, "order": order}
    losses = petra.train(modules, batches, loss=cross_entropy, **choices, **SGD)
    ours = train(PETRA(**choices), coupled(stages), batches).state
    assert not different(ours, outcome(losses, modules))


@pytest.mark.parametrize("frozen", [1, 2, 3])
def test_a_late_look_changes_no_bit_where_frozen_stages_are_inverted(frozen):
    def state(every):
        modules = coupled(4)
        nn.ModuleList(modules[:frozen]).requires_grad_(False)
        return train(PETRA(), modules, data(coupled, 8), check_every=every).state

    assert not different(state(1), state(2))


class OfTwo(Network):
    """A reversible layer of a nested structure, with a tensor without a gradient."""

    def forward(self, given):
        if isinstance(given, torch.Tensor):
            x1, x2 = given.chunk(2, 1)
            order, scale = torch.tensor([2, 0, 1]), 0.5
        else:
            x1, x2, order, scale = *given["halves"], given["order"], given["scale"]
        moved = x2 + scale * self.body(x1)[:, order]
        return {"halves": (moved, x1), "order": order, "scale": scale}

    def reverse(self, given):
        (y1, y2), order, scale = given["halves"], given["order"], given["scale"]
        halves = (y2, y1 - scale * self.body(y2)[:, order])
        return {"halves": halves, "order": order, "scale": scale}


class Joined(nn.Linear):
    """A head for it."""

    def forward(self, given):
        return super().forward(torch.cat(given["halves"], 1))


def test_stages_may_send_structures():
    def build():
        torch.manual_seed(0)
        one, other = (OfTwo(body=nn.Linear(3, 3)) for _ in range(2))
        first = nn.Sequential(nn.Identity(), one)  # which keeps its input
        return [stage.double() for stage in (first, nn.Sequential(other), Joined(6, 3))]

    batches = data(coupled, 6)
    options = {"lr": 1e-6, "momentum": 0.0}
    inverting = train(PETRA(), build(), batches, **options)
    assert [s.core.linearizer.inverts for s in inverting.trainer.stages] == [False, True, False]
    recomputing = train(DSP(order="forward-first"), build(), batches, **options)
    assert not far(inverting.state, recomputing.state, 1e-4)


def test_stages_that_keep_their_inputs_are_those_with_other_layers():
    trainer = Trainer(coupled(4), method=PETRA(), optimizer=sgd)
    stepped(trainer, data(coupled, 8))
    kept = [
        [batch.activation.values.numel() for batch in stage.in_flight.values()]
        for stage in trainer.stages
    ]
    assert kept == [[0] * 6, [24] * 4, [0] * 2, []]


class Wrong(Coupled):
    """Its inverse is one of another layer."""

    def reverse(self, y):
        return super().reverse(y) + 0.1


class Dropping(Coupled):
    """Each call draws another mask."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.body.append(nn.Dropout(0.5))


@pytest.mark.parametrize("layer", [Wrong, Dropping])
def test_a_reverse_that_is_no_inverse_is_named(layer):
    modules = coupled(3)
    modules[0][1] = layer(6).double()
    with pytest.raises(LinearizeError, match=rf"'0.1' \({layer.__name__}\).*norm"):
        train(PETRA(), modules, data(coupled, 6))


def test_stages_of_which_none_can_be_inverted_are_refused():
    """With the name of a layer in each that has a late gradient."""
    modules = [nn.Sequential(Coupled(6), nn.Linear(6, 6)), nn.Linear(6, 6), *coupled(1)]
    modules = [module.double() for module in modules]
    with pytest.raises(OptionError) as refused:
        train(PETRA(), modules, data(coupled, 2))
    assert "stage 0: layer '0.1' (Linear)" in str(refused.value)
    assert "stage 1: layer '1' (Linear)" in str(refused.value)
    assert "stage 2" not in str(refused.value)
    with pytest.raises(OptionError, match=r"'petra'.*none of 2"):
        train(PETRA(), mlp(2), data(mlp, 2))


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, {"compile": True}, {"cuda_graphs": True}], ids=str
)
def test_what_an_inverse_cannot_have_is_refused(options):
    with pytest.raises(OptionError, match=f"'petra' inverts.*leave {next(iter(options))} out"):
        Trainer(coupled(2), method=PETRA(), optimizer=sgd, **options)
