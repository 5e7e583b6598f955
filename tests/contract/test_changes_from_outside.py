"""What users do to weights, layers and contexts around a training leaves its gradients right.

A layer of a class of its own goes through the hooks, and one of PyTorch gets copies of its
weights: both ways have to agree, and to agree with an equivalent layer.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import hocket
from contract.small import coupled, data, put_into_one_memory, sgd
from hocket.errors import NonFiniteError, OptionError
from hocket.optim.rotated_adam import RotatedAdam
from unit.stage.test_held_weights import HOLDING

BATCHES = data(coupled, 12)
LOWEST = torch.finfo(torch.float32).min
Modules = list[nn.Module]
Change = Callable[[int, Modules], None]


class OwnLinear(nn.Linear):
    """A layer of which nothing is known."""


LINEAR = pytest.mark.parametrize("linear", [nn.Linear, OwnLinear])


@pytest.fixture(autouse=True)
def double_precision() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def stages(*middle: Callable[[], nn.Module]) -> Modules:
    """Return two stages, the first of which has these layers at its end, and a delay."""
    torch.manual_seed(0)
    layers = [build() for build in middle]
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), *layers), nn.Linear(6, 3)]


def squares(linear: type[nn.Linear], *further: Callable[[], nn.Module]) -> Modules:
    return stages(lambda: linear(6, 6), *further)


def train(
    modules: Modules,
    *,
    change: Change = lambda step, modules: None,
    first: Callable[[Modules], Any] | None = None,
    method: str = "fdg",
    batches: Sequence[Any] = BATCHES,
    optimizer: Any = sgd,
    loss: Any = F.cross_entropy,
    **options: Any,
) -> Modules:
    """Train, with a change before the first step or after each; return the modules."""
    trainer = hocket.Trainer(modules, method=method, optimizer=optimizer, loss=loss, **options)
    if first is not None:
        trainer.prepare(batches[0][0])
        first(modules)
    for step, batch in enumerate(batches):
        trainer.step(*batch)
        change(step, modules)
    trainer.finish()
    return modules


def weights(modules: Modules) -> list[Tensor]:
    return [p.detach() for module in modules for p in module.parameters()]


def assert_same(one: Modules, other: Modules) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-12, atol=1e-12)


@LINEAR
@pytest.mark.parametrize("when", [-1, 3])
@pytest.mark.parametrize("method", ["fdg", *HOLDING.values()], ids=["fdg", *HOLDING])
def test_weights_that_come_into_one_memory_stay_those_of_their_layers(method, when, linear):
    def flatten(step: int, modules: Modules) -> None:
        if step == when:
            put_into_one_memory([p for module in modules for p in module.parameters()])

    def build() -> Modules:
        first, last = squares(linear, nn.Tanh, lambda: linear(6, 6))
        return [first[:2], first[2:], last]

    together = build()
    flatten(-1, together)
    assert_same(train(build(), method=method), train(together, method=method, change=flatten))


class FlatSGD(torch.optim.SGD):
    """An optimizer that puts its weights into one memory."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        chosen = list(parameters)
        super().__init__(chosen, **options)
        put_into_one_memory(chosen)


@LINEAR
@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_may_put_its_weights_into_one_memory(linear, fused):
    flat, plain = (
        train(
            squares(linear, nn.Tanh),
            optimizer=lambda w, kind=kind: kind(w, lr=0.05, fused=fused),
        )
        for kind in (FlatSGD, torch.optim.SGD)
    )
    assert_same(flat, plain)


class Complex(nn.Module):
    def __init__(self, conjugate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.cdouble) / 2)
        self.conjugate = conjugate

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.complex(inputs, inputs.flip(1)) @ self.conjugate(self.weight).T
        return hidden.abs() + inputs @ self.conjugate(self.weight).imag


@pytest.mark.parametrize("linearize", ["stash", "recompute"])
def test_conjugate_weights_are_kept_as_conjugates(linearize):
    lazy, physical = (
        train(stages(lambda how=how: Complex(how)), method=f"fdg:linearize={linearize}")
        for how in (torch.conj, torch.conj_physical)
    )
    assert_same(lazy, physical)


class Masked(nn.Module):
    """A layer with a mask whose Euclidean norm overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mask", torch.full((6, 6), LOWEST).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) @ torch.softmax(self.mask, 1)


@pytest.mark.parametrize("every", [1, 2])
def test_the_lowest_numbers_are_no_fault(every):
    torch.set_default_dtype(torch.float32)
    batches = [(inputs.float(), targets) for inputs, targets in BATCHES]
    train([Masked(), nn.Linear(6, 3)], batches=batches, check_every=every)


@pytest.mark.parametrize("every", [1, 2])
def test_a_stage_that_is_frozen_at_first_trains_later(every):
    def unfreeze(step: int, modules: Modules) -> None:
        if step == 3:
            modules[0].requires_grad_(True)

    before = stages()
    after = train(
        stages(),
        first=lambda modules: modules[0].requires_grad_(False),
        change=unfreeze,
        check_every=every,
    )
    assert not torch.equal(weights(before)[0], weights(after)[0])


def test_gradients_from_before_a_training_are_not_learned():
    modules = stages()
    inputs, targets = BATCHES[0]
    F.cross_entropy(modules[1](modules[0](inputs)), targets).backward()
    assert_same(train(modules, method="bp"), train(stages(), method="bp"))


class Root(nn.Module):
    """Add the root of zero, whose gradient is NaN, if that is switched on."""

    on = False

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.sqrt(inputs * 0) if Root.on else inputs


def test_after_a_fault_another_trainer_goes_on():
    def switch(step: int, modules: Modules) -> None:
        Root.on = step == 2

    modules = stages(Root)
    with pytest.raises(NonFiniteError, match=r"gradient of '0\.0\.weight' became nan"):
        train(modules, change=switch)
    Root.on = False
    assert all(weight.isfinite().all() for weight in weights(train(modules)))


def penalty(modules: Sequence[nn.Module]) -> Tensor:
    return 0.1 * sum((p**2).sum() for module in modules for p in module.parameters())


def add_hook(step: int, modules: Modules) -> None:
    if step == 4:
        modules[0][2].weight.register_hook(lambda gradient: gradient * 0)


def cut(step: int, modules: Modules) -> None:
    if step == 3:
        prune.l1_unstructured(modules[0][2], "weight", 0.3)


@pytest.mark.parametrize("change", [add_hook, cut])
def test_layers_with_and_without_copies_agree_on_gradients_from_elsewhere(change):
    plain, own = (squares(linear, nn.Tanh) for linear in (nn.Linear, OwnLinear))
    assert_same(train(plain, change=change), train(own, change=change))


def test_a_loss_that_uses_weights_of_other_stages_is_refused():
    modules = squares(nn.Linear)
    with pytest.raises(OptionError, match=r"stage \d: the loss uses \d+ weights \(.*\)"):
        train(modules, loss=lambda out, y: F.cross_entropy(out, y) + penalty(modules))


def test_gradients_from_elsewhere_are_dropped_with_a_warning():
    with pytest.warns(UserWarning, match=r"weights \(.*\) had gradients that no batch of this"):
        added = train(
            squares(nn.Linear), change=lambda step, modules: penalty(modules[:1]).backward()
        )
    assert_same(added, train(squares(nn.Linear)))


class Neighbours(nn.Module):
    """Mean over a graph, whose matrix may be sparse."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        matrix = torch.eye(4) + 0.5
        self.register_buffer("matrix", matrix.to_sparse() if sparse else matrix)
        self.linear = nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.matrix @ self.linear(inputs)


@pytest.mark.parametrize("linearize", ["stash", "live"])
def test_sparse_matrices_may_be_saved(linearize):
    sparse, dense = (
        train(stages(partial(Neighbours, sparse=kind)), method=f"fdg:linearize={linearize}")
        for kind in (True, False)
    )
    assert_same(sparse, dense)


class Energy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - torch.func.grad(
            lambda x: torch.tanh(super(Energy, self).forward(x)).sum()
        )(inputs)


def test_where_hooks_are_impossible_the_error_says_what_is_not():
    with pytest.raises(RuntimeError, match="saved tensor hooks") as refused:
        train(squares(Energy))
    assert "(linearize='recompute' uses no such hooks)" in refused.value.__notes__
    train(squares(Energy), method="fdg:linearize=recompute")


def test_an_edit_of_a_weight_is_not_undone_by_older_weights():
    modules = squares(nn.Linear)
    trainer = hocket.Trainer(modules, method="adl:hold=double,accumulate=4", optimizer=sgd)
    for step, batch in enumerate(BATCHES[:7]):
        if step == 6:
            modules[0][2].weight.data.zero_()
        trainer.step(*batch)
    assert not modules[0][2].weight.any()


def test_a_second_late_fault_finds_the_optimizer_as_it_was():
    trainer = hocket.Trainer(stages(), method="bp", optimizer=sgd, check_every=2)
    faults = []
    for step, (inputs, targets) in enumerate(BATCHES):
        try:
            trainer.step(inputs * float("nan") if step in (3, 5) else inputs, targets)
        except NonFiniteError:
            faults.append(step)
    assert faults == [3, 5]
    for stage in trainer.stages:
        assert all(
            state.isfinite().all() for state in stage.updater.optimizer_tensors().values()
        )


class Growing(nn.Linear):
    """A layer whose buffer has another size after each forward."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("seen", torch.zeros(1, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, inputs.detach()[:1]])
        return super().forward(inputs)


class Expanded(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("offset", torch.zeros(1).expand(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.offset


@pytest.mark.parametrize("build", [Growing, Expanded, partial(Neighbours, sparse=True)])
@pytest.mark.parametrize(("every", "fault", "kept"), [(1, 5, 5), (3, 5, 3), (3, 1, 0)])
def test_a_fault_is_told_and_buffers_go_back_whatever_became_of_them(every, fault, kept, build):
    factors = [float("nan") if step == fault else 1.0 for step in range(len(BATCHES))]
    batches = [(x * f, y) for f, (x, y) in zip(factors, BATCHES, strict=True)]
    first, again = build(), build()
    with pytest.raises(NonFiniteError, match="the output became nan"):
        train([first, nn.Linear(6, 3)], batches=batches, check_every=every)
    for inputs, _ in batches[:kept]:
        again(inputs)
    pairs = zip(first.buffers(), again.buffers(), strict=True)
    assert all(torch.equal(one.to_dense(), other.to_dense()) for one, other in pairs)
    train([build(), nn.Linear(6, 3)], batches=batches, on_nan="skip")


AROUND = {
    "on": lambda: torch.autocast("cpu", torch.bfloat16),
    "off": lambda: torch.autocast("cpu", torch.bfloat16, enabled=False),
    "another device": lambda: torch.device("meta"),  # as the default
}


def rotated(weights: list[nn.Parameter]) -> RotatedAdam:
    matrices = [weight for weight in weights if weight.dim() == 2]
    others = [weight for weight in weights if weight.dim() != 2]
    groups = [{"params": matrices}, {"params": others, "rotated": False}]
    return RotatedAdam(groups, lr=0.01)


# What computes outside of the passes of the layers, too.
COMPUTING: dict[str, dict[str, Any]] = {
    "layers": {"method": "bp"},
    "heads": {"method": "dgl"},
    "synthesizers": {"method": "dni"},
    "optimizer": {"method": "fdg", "optimizer": rotated},
    "codec": {"method": "dgl", "codec": "vq:codes=4"},
    "true gradients": {"gradient_error_every": 1, "on_gradient_error": lambda error: None},
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("options", COMPUTING.values(), ids=COMPUTING)
def test_autocast_or_another_default_device_changes_nothing(around, precision, options):
    torch.set_default_dtype(torch.float32)
    batches = [(inputs.float(), targets) for inputs, targets in BATCHES]

    def trained(context: AbstractContextManager[Any]) -> Modules:
        layers = squares(nn.Linear, nn.Tanh)
        with context:
            return train(layers, batches=batches, precision=precision, **options)

    alone = trained(nullcontext())
    told = (around, precision) == ("on", "fp32")
    warned = pytest.warns(UserWarning, match="inside torch.autocast.*precision='bf16'")
    with warned if told else nullcontext():
        inside = trained(AROUND[around]())
    assert all(map(torch.equal, weights(alone), weights(inside)))


def test_an_evaluation_inside_autocast_has_the_present_weights():
    modules = [module.float() for module in stages()]
    batches = [(inputs.float(), targets) for inputs, targets in BATCHES]
    trainer = hocket.Trainer(modules, method="bp", optimizer=sgd, precision="bf16")
    with AROUND["on"]():
        trainer.evaluate(batches)
        modules[0][0].weight.data.mul_(2)
        inside = trainer.evaluate(batches)
    assert inside == trainer.evaluate(batches)
