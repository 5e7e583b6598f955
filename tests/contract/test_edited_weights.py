"""Layers that change their own weights in their forward keep the changes, or are refused."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.small import LINEARIZE, coupled, data, different, sgd, stepped
from hocket import Trainer
from hocket.errors import LinearizeError

BATCHES = [(x.float(), y) for x, y in data(coupled, 8)]


class Limited(nn.Module):
    """A layer that limits its weight before it computes with it."""

    limit = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) * 0.6)

    def forward(self, inputs: Tensor) -> Tensor:
        self.edit()
        return torch.tanh(inputs @ self.weight.T)

    def edit(self) -> None:
        with torch.no_grad():
            self.weight.clamp_(-self.limit, self.limit)


class LimitsData(Limited):
    def edit(self) -> None:
        self.weight.data.clamp_(-self.limit, self.limit)


class LimitsNothing(LimitsData):
    """Clamps from the first forward on, and reaches the limit later."""

    limit = 2.2


class GivesNewMemory(Limited):
    def edit(self) -> None:
        self.weight.data = self.weight.data.clamp(-self.limit, self.limit)


class DividesByNorm(Limited):
    def edit(self) -> None:
        self.weight.data.div_(torch.linalg.matrix_norm(self.weight.data, 2))


class Renormalizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 6, max_norm=0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.table(inputs[:, 0].abs().mul(100).long() % 6)


KINDS = [Limited, LimitsData, LimitsNothing, GivesNewMemory, DividesByNorm, Renormalizes]
each_kind = pytest.mark.parametrize("kind", KINDS)


def declared(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class with a declaration of its forward, which is wrong for most."""
    forward = {"forward": kind.forward}
    return type(f"Declared{kind.__name__}", (kind,), {"plain_forward": True, **forward})


def train(kind: type[nn.Module], method: str, **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(6, 6), kind()) for _ in range(3)]
    modules[-1].append(nn.Linear(6, 3))
    trainer = stepped(Trainer(modules, method=method, **{"optimizer": sgd, **options}), BATCHES)
    trainer.finish()
    return [weight.detach() for module in modules for weight in module.parameters()]


@each_kind
@pytest.mark.parametrize(
    "method", ["bp", "adl:accumulate=2", *[f"ddg:linearize={how}" for how in LINEARIZE]]
)
@pytest.mark.filterwarnings("ignore:.*all precautions are taken")
def test_neither_a_declaration_nor_checkpoints_lose_a_change(kind, method):
    wanted = train(kind, method)
    assert not different(wanted, train(declared(kind), method))
    assert not different(wanted, train(kind, method, resumable=True))


@pytest.mark.parametrize("linearize", LINEARIZE)
@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_may_give_its_weight_new_memory(linearize, fused):
    options = {"method": f"fdg:linearize={linearize}", "optimizer": partial(sgd, fused=fused)}
    assert not different(train(GivesNewMemory, **options), train(Limited, **options))


@pytest.mark.filterwarnings("ignore:.*all precautions are taken")
def test_a_layer_that_wrongly_declares_a_plain_forward_is_named():
    with pytest.warns(UserWarning, match=r"\(0.1.weight\), .*declared by DeclaredLimited"):
        train(declared(Limited), "fdg")


@each_kind
@pytest.mark.parametrize(
    ("method", "stand_in", "options"),
    [
        ("ddg+predict(direction=last)", "predict", {}),
        ("ddg:linearize=recompute+t2", "t2", {}),
        ("pipedream:hold=vertical", "hold", {}),
        ("fdg", "compile", {"compile": "aot_eager"}),
        ("ddg:linearize=live", "compile", {"compile": "aot_eager"}),
    ],
)
def test_a_change_is_refused_where_forwards_see_other_weights(kind, method, stand_in, options):
    name = "1.table.weight" if kind is Renormalizes else "1.weight"
    with pytest.raises(LinearizeError, match=rf"stage .* \(\d\.{name}\) .*\({stand_in}\)"):
        train(kind, method, **options)


class LimitsLater(Limited):
    """Leaves its weight alone in its first forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def edit(self) -> None:
        self.forwards += 1
        if self.forwards > 5:
            super().edit()


@pytest.mark.parametrize(
    ("kind", "method"),
    [(declared(LimitsLater), "fdg"), (LimitsLater, "pipedream:hold=vertical")],
)
def test_a_change_that_comes_later_is_refused(kind, method):
    with pytest.raises(LinearizeError, match=r"a forward changes 1 weights \(\d.1.weight\)"):
        train(kind, method)


@pytest.mark.parametrize("method", ["pipedream:hold=vertical", "ddg+predict(direction=last)"])
def test_a_frozen_weight_may_be_changed_anywhere(method):
    class Frozen(LimitsData):
        def __init__(self) -> None:
            super().__init__()
            self.requires_grad_(False)

    assert any(weight.abs().max() == 0.3 for weight in train(Frozen, method))
