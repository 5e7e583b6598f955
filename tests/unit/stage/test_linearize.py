"""Late gradients of layers that keep, share, view, transform or replay their weights."""

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from contract.small import (
    CLASSES,
    LINEARIZE,
    SGD,
    back_propagate,
    conv,
    data,
    different,
    far,
    mlp,
    sgd,
    train,
)
from hocket import cross_entropy
from hocket.errors import LinearizeError
from hocket.methods import DDG, FDG
from hocket.stage.late_gradients.build import build_linearizer
from hocket.stage.late_gradients.linearizer import PlainGraph, Recompute, StageLayers
from hocket.stage.late_gradients.saved_weights import SavedTensorHooks
from reference import ddg, fdg

every_linearization = pytest.mark.parametrize("linearize", LINEARIZE)
SAVING = pytest.mark.parametrize("linearize", ["stash", "live"])
FACTORY = {
    "stash": partial(SavedTensorHooks, StageLayers(), stash=True),
    "live": partial(SavedTensorHooks, StageLayers(), stash=False),
}
FACTORY["recompute"] = partial(Recompute, StageLayers(), "forward")


class Recurrent(nn.Module):
    """Last output of a recurrence over the features, one at a time."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(1, 5, num_layers=2, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.cell(values[..., None])[0][:, -1]


class Views(nn.Module):
    """One weight, used transposed, sliced, expanded and squared."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5) / 2)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(values @ self.weight.T)
        hidden = hidden * self.weight[:, 2].expand_as(hidden)
        return torch.tanh(hidden[:, 1:] @ self.weight[1:] + self.weight[0] ** 2)


class Tied(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(values)))


class Buffered(nn.Module):
    """A layer with a statistic that is replaced by a new tensor at each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.layer = nn.Linear(5, 5)

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
        return self.layer(values - values.mean(0)) * 2


LAYERS = {
    "views": Views,
    "tied": Tied,
    "buffered": Buffered,
    "layer norm": lambda: nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.GELU()),
    "frozen": lambda: nn.Sequential(nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 5)),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (5, 1)),
        nn.TransformerEncoderLayer(1, 1, 4, dropout=0.0, batch_first=True),
        nn.Flatten(),
    ),
}
# Layers that compute with copies of their weights: only stash and recompute support them.
COPYING = {
    "lstm": partial(Recurrent, nn.LSTM),
    "gru": partial(Recurrent, nn.GRU),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(5, 5)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(5, 5)).eval(),
}
CASES = [(name, how) for name in LAYERS for how in LINEARIZE]
CASES += [(name, "stash") for name in COPYING]


def layered(name: str, stages: int = 3) -> list[nn.Module]:
    """Build stages of the layer and a linear one each."""
    torch.manual_seed(0)
    make = {**LAYERS, **COPYING}[name]
    built = [nn.Sequential(make(), nn.Linear(5, 5), nn.Tanh()) for _ in range(stages)]
    built[-1].append(nn.Linear(5, CLASSES))
    return [stage.double() for stage in built]


@pytest.mark.parametrize(("name", "linearize"), CASES)
def test_a_layer_is_linearized_as_in_the_reference(name, linearize):
    """Close in float64; the reference has a deep copy of the stage for each stash."""
    batches, modules = data(mlp, 10), layered(name)
    losses = fdg.train(modules, batches, loss=cross_entropy, linearize=linearize, **SGD)
    trained = train(FDG(linearize=linearize), layered(name), batches)
    wanted = [v for m in modules for v in m.state_dict().values()]
    if name == "buffered" and linearize == "stash":
        # A copy keeps the buffer that it replaced to itself, so only the rest is compared.
        assert trained.losses == pytest.approx(losses, rel=1e-10)
        return
    assert not far(trained.state, [torch.tensor(losses, dtype=torch.double), *wanted])


@every_linearization
@pytest.mark.parametrize("method", [(FDG, fdg), (DDG, ddg)], ids=["fdg", "ddg"])
@pytest.mark.parametrize("net", [mlp, conv])
def test_a_fused_optimizer_is_held_to_the_linearization(net, method, linearize):
    """Close in float64: autograd does not see the writes of its step."""
    ours, naive = method
    batches, modules = data(net, 10), net(3)
    losses = naive.train(modules, batches, loss=cross_entropy, linearize=linearize, **SGD)
    fused = train(
        ours(linearize=linearize), net(3), batches, optimizer=partial(sgd, fused=True)
    )
    wanted = [v for m in modules for v in m.state_dict().values()]
    assert not far(fused.state, [torch.tensor(losses, dtype=torch.double), *wanted])


@every_linearization
@pytest.mark.parametrize("foreach", [False, True])
def test_every_step_of_an_optimizer_gives_the_same(foreach, linearize):
    """Bit-equal."""
    method, batches = FDG(linearize=linearize), data(conv, 10)
    plain = train(method, conv(3), batches).state
    other = train(method, conv(3), batches, optimizer=partial(sgd, foreach=foreach)).state
    assert not different(plain, other)


@SAVING
def test_single_precision_is_linearized_too(linearize):
    """Bit-equal to the reference, whose kernels are the same."""
    batches = [(x.float(), y) for x, y in data(conv, 10)]
    modules = [stage.float() for stage in conv(3)]
    losses = fdg.train(modules, batches, loss=cross_entropy, linearize=linearize, **SGD)
    trained = train(FDG(linearize=linearize), [s.float() for s in conv(3)], batches)
    assert trained.losses == losses
    wanted = [v for m in modules for v in m.state_dict().values()]
    assert not different(trained.state[1:], wanted)


# Changes that make a linearization impossible are refused when they happen.


class Edits(nn.Module):
    """Layer that edits a tensor that an earlier batch's backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(5, dtype=torch.double)
        self.layer = nn.Linear(5, 5, dtype=torch.double)

    def forward(self, values: Tensor) -> Tensor:
        self.scale += 1
        return self.layer(values) * self.scale


@SAVING
def test_a_saved_tensor_edited_after_the_forward_is_refused(linearize):
    modules = [Edits(), *mlp(2)]
    with pytest.raises(
        LinearizeError, match=r"shape \(5,\) .* was changed in place .*linearize='recompute'"
    ) as caught:
        train(FDG(linearize=linearize), modules, data(mlp, 8))
    assert "(stage 0, batch 0, tick 4: B0.0)" in caught.value.__notes__


@SAVING
def test_an_activation_edited_after_the_forward_is_refused(linearize):
    saved = []

    def forward(values: Tensor) -> Tensor:
        hidden = values.exp()
        saved.append(hidden)
        return hidden * 2

    module = nn.Linear(2, 2)
    module.forward = forward
    _, kept = FACTORY[linearize]().forward(module, torch.ones(1, 2, requires_grad=True))
    saved[0].detach().add_(1)
    with pytest.raises(LinearizeError, match=r"shape \(1, 2\).*version 1, wanted 0"):
        kept.get().sum().backward()


class Hidden(nn.Module):
    """Two layers, called as modules or as functions of their weights."""

    def __init__(self, *, layers: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5, dtype=torch.double)
        self.second = nn.Linear(5, 5, dtype=torch.double)
        self.layers = layers

    def forward(self, values: Tensor) -> Tensor:
        if self.layers:
            return self.second(torch.tanh(self.first(values)))
        hidden = torch.tanh(nn.functional.linear(values, self.first.weight))
        return nn.functional.linear(hidden, self.second.weight)


def script() -> nn.Module:
    """Build a module whose forward does not call Python."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # the second one in PyTorch 2.14
            warnings.simplefilter("ignore", category)
        return torch.jit.script(Hidden())


class Checkpointed(nn.Module):
    """Layer that recomputes its hidden values in the backward."""

    def __init__(self, hidden: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.hidden = hidden
        self.reentrant = reentrant

    def forward(self, values: Tensor) -> Tensor:
        return checkpoint(self.hidden.forward, values, use_reentrant=self.reentrant)


reentrance = pytest.mark.parametrize("reentrant", [True, False])
# Reentrant checkpointing warns of every forward that builds no graph.
unmoved = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


def checkpointed(
    *, reentrant: bool, hidden: Callable[[], nn.Module] = Hidden
) -> list[nn.Module]:
    torch.manual_seed(0)
    middle = Checkpointed(hidden(), reentrant=reentrant)
    first, *_, last = mlp(3)
    return [first, middle, last]


@SAVING
@unmoved
@reentrance
@pytest.mark.parametrize(
    "hidden",
    [Hidden, partial(Hidden, layers=False), script],
    ids=["of layers", "of functions", "of a script"],
)
def test_checkpointing_inside_a_delayed_stage_is_refused(hidden, reentrant, linearize):
    modules = checkpointed(reentrant=reentrant, hidden=hidden)
    with pytest.raises(LinearizeError, match=r"stage 1: .*forwarded again.*'recompute'"):
        train(FDG(linearize=linearize), modules, data(mlp, 8))


@unmoved
@reentrance
def test_checkpointing_is_supported_by_recompute(reentrant):
    """Bit-equal to recompute without checkpointing: both use the current weights."""

    def plain() -> list[nn.Module]:
        first, middle, last = checkpointed(reentrant=reentrant)
        return [first, middle.hidden, last]

    method, batches = FDG(linearize="recompute"), data(mlp, 8)
    assert not different(
        train(method, checkpointed(reentrant=reentrant), batches).state,
        train(method, plain(), batches).state,
    )


@SAVING
@unmoved
@reentrance
def test_checkpointing_in_a_stage_without_delay_is_allowed(reentrant, linearize):
    first, middle, last = checkpointed(reentrant=reentrant)
    modules = [first, nn.Sequential(middle, last)]
    train(FDG(linearize=linearize), modules, data(mlp, 8))


# Linearizers alone.


def test_without_delay_every_linearizer_is_the_plain_graph():
    for linearize in LINEARIZE:
        assert isinstance(build_linearizer(linearize, 0, "forward", StageLayers()), PlainGraph)
        assert not isinstance(
            build_linearizer(linearize, 1, "forward", StageLayers()), PlainGraph
        )


@every_linearization
def test_gradient_of_one_layer_at_old_and_new_weights(linearize):
    """By hand: y = w2 tanh(w1 x), with w1, w2 moved between forward and backward."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False))
    module.double()
    x = torch.full((1, 1), 0.3, dtype=torch.double, requires_grad=True)
    linearizer = FACTORY[linearize]()
    old = [p.item() for p in module.parameters()]
    _, kept = linearizer.forward(module, x)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.5)
    linearizer.after_update()
    new = [p.item() for p in module.parameters()]
    kept.get().backward()
    first, second = new if linearize == "recompute" else old
    second = new[1] if linearize == "live" else second
    slope = 1 - torch.tanh(torch.tensor(first * 0.3, dtype=torch.double)).item() ** 2
    back = new[0] if linearize == "live" else first
    assert module[0].weight.grad.item() == pytest.approx(second * slope * 0.3, rel=1e-12)
    assert x.grad.item() == pytest.approx(second * slope * back, rel=1e-12)


class Replacing(torch.optim.SGD):
    """An optimizer that puts new tensors into the place of the weights."""

    strided = False

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    new = p - group["lr"] * p.grad
                    p.data = new.t().contiguous().t() if self.strided else new


class ReplacingStrides(Replacing):
    strided = True


@every_linearization
@pytest.mark.parametrize("net", [mlp, conv])
def test_an_optimizer_may_replace_the_memory_of_the_weights(net, linearize):
    """Bit-equal to one that writes into it."""

    class InPlace(Replacing):
        @torch.no_grad()
        def step(self, closure=None):
            memory = [p.data for group in self.param_groups for p in group["params"]]
            super().step()
            for group in self.param_groups:
                for p, old in zip(group["params"], memory, strict=True):
                    p.data = old.copy_(p.data)

    states = [
        train(
            FDG(linearize=linearize),
            net(3),
            data(net, 8),
            optimizer=partial(optimizer, lr=0.1),
        ).state
        for optimizer in (InPlace, Replacing)
    ]
    assert not different(*states)


def test_live_refuses_weights_that_are_replaced_by_others_of_another_layout():
    with pytest.raises(
        LinearizeError, match=r"a weight of shape \(\d, \d\) was replaced by one"
    ):
        train(
            FDG(linearize="live"),
            mlp(3),
            data(mlp, 8),
            optimizer=partial(ReplacingStrides, lr=0.1),
        )


def test_stash_copies_a_weight_once_for_each_version():
    module, linearizer = (
        nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)),
        SavedTensorHooks(StageLayers(), stash=True),
    )
    x = torch.ones(1, 5, requires_grad=True)
    outputs = [linearizer.forward(module, x)[1] for _ in range(3)]
    once = len(linearizer.copies._copies)
    outputs += [linearizer.forward(module, x)[1]]
    assert 0 < len(linearizer.copies._copies) == once
    linearizer.after_update()
    assert not linearizer.copies._copies
    for kept in outputs:
        kept.get().sum().backward()


@pytest.mark.parametrize("change", ["load_state_dict", "in place"])
def test_stash_sees_weights_that_change_from_outside(change):
    """The optimizer of the stage is not the only one to change weights."""
    torch.manual_seed(0)
    module, linearizer = (
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        SavedTensorHooks(StageLayers(), stash=True),
    )
    x = torch.ones(1, 3, requires_grad=True)

    def gradient() -> Tensor:
        return torch.autograd.grad(module(x).sum(), x)[0]

    (_, first), wanted = linearizer.forward(module, x), gradient()
    if change == "in place":
        with torch.no_grad():
            module[1].weight += 1
    else:
        module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
    (_, second), other = linearizer.forward(module, x), gradient()
    assert not torch.equal(wanted, other)
    assert torch.equal(torch.autograd.grad(first.get().sum(), x)[0], wanted)
    assert torch.equal(torch.autograd.grad(second.get().sum(), x)[0], other)


@every_linearization
def test_a_module_may_edit_what_it_is_given(linearize):
    x = torch.tensor([[-1.0, 2.0]], requires_grad=True)
    _, kept = FACTORY[linearize]().forward(nn.ReLU(inplace=True), x)
    kept.get().sum().backward()
    assert x.tolist() == [[-1.0, 2.0]]
    assert x.grad.tolist() == [[0.0, 1.0]]


def test_a_replay_builds_no_graph_in_its_forward():
    """It keeps the input; the graph is built when the gradient comes."""
    output, kept = Recompute(StageLayers(), "forward").forward(
        nn.Linear(5, 5), torch.ones(1, 5)
    )
    assert not output.requires_grad
    assert kept.get().requires_grad


@pytest.mark.parametrize(("statistics", "counted"), [("forward", 1), ("both", 2)])
def test_statistics_are_counted_in_one_pass_or_in_both(statistics, counted):
    module = nn.BatchNorm1d(2)
    _, kept = Recompute(StageLayers(), statistics).forward(module, torch.randn(4, 2))
    kept.get()
    assert module.num_batches_tracked.item() == counted


def test_one_late_batch_of_live_is_the_gradient():
    """Bit-equal: no weight has moved yet."""
    for linearize in LINEARIZE:
        trained = train(FDG(linearize=linearize), mlp(3), data(mlp, 1))
        assert not different(trained.state, back_propagate(mlp(3), data(mlp, 1)))
