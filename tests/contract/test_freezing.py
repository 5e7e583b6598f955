"""Weights that are frozen and unfrozen while batches are in flight.

A frozen weight is one whose learning rate is zero, and a batch that is forwarded while it is
frozen gives it no gradient. Layers of all kinds are frozen alike.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contract.small import LINEARIZED, data, different, mlp
from hocket import Trainer

BATCHES = data(mlp, 18)
UNFROZEN_AFTER = 11
RATE = 0.05


class Own(nn.Linear):
    """A layer of which nothing is known, with a switch that detaches its weights."""

    on = True

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if not self.on:
            weight, bias = weight.detach(), bias.detach()
        return F.linear(inputs, weight, bias)


class Declared(nn.Linear):
    plain_forward = True

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)


def build(kind: type[nn.Linear]) -> list[nn.Module]:
    torch.manual_seed(0)
    built = [nn.Sequential(nn.Linear(5, 5), nn.Tanh(), kind(5, 5)) for _ in range(3)]
    built[-1].append(nn.Linear(5, 3))
    return [stage.double() for stage in built]


def one_of_each_stage(modules: list[nn.Module]) -> list[nn.Module]:
    return [module[2] for module in modules]


def sgd(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": [weight]} for weight in weights]
    return torch.optim.SGD(groups, lr=RATE, weight_decay=0.01)


def weights_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [weight for module in modules for weight in module.parameters()]


def freeze(trainer: Trainer, layers: list[nn.Module], *, frozen: bool) -> None:
    for layer in layers:
        layer.requires_grad_(not frozen)


def switch(trainer: Trainer, layers: list[nn.Module], *, frozen: bool) -> None:
    """Do to layers with a switch what freezing and unfreezing do."""
    for layer in layers:
        layer.on = not frozen
    chosen = set(weights_of(layers))
    for stage in trainer.stages:
        for group in stage.updater.optimizer.param_groups:
            if chosen & set(group["params"]):
                group["lr"] = 0.0 if frozen else RATE


def train(
    method: str,
    kind: type[nn.Linear],
    frozen_after: int = 4,
    *,
    change: Callable[..., None] = freeze,
    choose: Callable[[list[nn.Module]], list[nn.Module]] = one_of_each_stage,
    resumed: tuple[int, Path] | None = None,
    **options: Any,
) -> list[Tensor]:
    """Train with some layers frozen for a while, perhaps resumed; return the weights."""
    modules = build(kind)
    layers = choose(modules)
    trainer = Trainer(modules, method=method, optimizer=sgd, **options)
    for number, batch in enumerate(BATCHES):
        if resumed is not None and number == resumed[0]:
            trainer.save(resumed[1])
            modules = build(kind)
            layers = choose(modules)
            freeze(trainer, layers, frozen=frozen_after < number <= UNFROZEN_AFTER)
            trainer = Trainer(modules, method=method, optimizer=sgd, **options)
            trainer.resume(resumed[1])
        trainer.step(*batch)
        if number == frozen_after:
            change(trainer, layers, frozen=True)
            before = [weight.detach().clone() for weight in weights_of(layers)]
        if number == UNFROZEN_AFTER:
            assert not different(before, weights_of(layers))
            change(trainer, layers, frozen=False)
    trainer.finish()
    assert len(different(before, weights_of(layers))) == len(before)
    return [weight.detach() for weight in weights_of(modules)]


HELD = ["pipedream:hold=vertical", "adl:hold=vertical", "adl:accumulate=3,hold=double"]
IN_GROUPS = ["adl:accumulate=2,linearize=live", "adl:accumulate=2,linearize=recompute"]
IN_GROUPS += ["bp:accumulate=4", "gpipe:recompute=true", "paci:accumulate=3"]
IN_GROUPS += ["adl:accumulate=2", "pipedream-2bw:accumulate=3"]
CASES = ["ddg:linearize=recompute+t2", "fdg+compensate", "ddg+t1"]
CASES += [*LINEARIZED, *HELD, *IN_GROUPS]
PREDICTED = ["ddg+predict(direction=last)", "ddg:linearize=live+predict(direction=last)"]


# In the midst of a group of gradients, too.
@pytest.mark.parametrize(
    ("method", "frozen_after"),
    [*((name, 5) for name in CASES), *((name, 4) for name in [*IN_GROUPS, *HELD])],
)
def test_a_frozen_weight_is_one_whose_rate_is_zero(method, frozen_after):
    wanted = train(method, Own, frozen_after, change=switch)
    for kind in (Own, nn.Linear, Declared):
        assert not different(wanted, train(method, kind, frozen_after)), kind


@pytest.mark.parametrize("method", [*CASES, *PREDICTED])
@pytest.mark.parametrize("stages", [[1], [0, 1]], ids=str)
def test_a_training_goes_on_while_whole_stages_are_frozen(method, stages):
    def choose(modules: list[nn.Module]) -> list[nn.Module]:
        return [modules[stage] for stage in stages]

    wanted = train(method, Own, choose=choose)
    for kind in (nn.Linear, Declared) if method in PREDICTED else (nn.Linear,):
        assert not different(wanted, train(method, kind, choose=choose)), kind


# While they are frozen, and with batches in flight from before a change.
@pytest.mark.parametrize("resumed_at", [None, 5, 9, 12, 13])
@pytest.mark.parametrize("method", ["fdg", "fr", *HELD, *IN_GROUPS[:1], "fdg+compensate"])
@pytest.mark.parametrize("kind", [Own, nn.Linear, Declared])
def test_checkpoints_change_nothing_of_it(method, kind, resumed_at, tmp_path):
    wanted, resumed = train(method, kind), resumed_at and (resumed_at, tmp_path)
    assert not different(wanted, train(method, kind, resumed=resumed, resumable=True))


@pytest.mark.parametrize("method", ["fdg", "ddg:linearize=live", "adl:accumulate=2"])
def test_compiled_layers_are_frozen_as_others(method):
    plain, compiled = train(method, Own), train(method, Own, compile="aot_eager")
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)
