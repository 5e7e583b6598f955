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
    Network,
    Recurrent,
    conv,
    data,
    far,
    mlp,
    outcome,
    sgd,
    train,
)
from hocket import cross_entropy
from hocket.errors import LinearizeError
from hocket.methods import DDG, FDG
from reference import ddg, fdg

SAVING = pytest.mark.parametrize("linearize", ["stash", "live"])


class Views(nn.Module):
    """One weight, used transposed, sliced, expanded and squared."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5) / 2)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(values @ self.weight.T)
        hidden = hidden * self.weight[:, 2].expand_as(hidden)
        return torch.tanh(hidden[:, 1:] @ self.weight[1:] + self.weight[0] ** 2)


class Tied(Network):
    """One layer, used twice."""

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
    "tied": lambda: Tied(layer=nn.Linear(5, 5)),
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
    if name == "buffered" and linearize == "stash":
        # A copy keeps the buffer that it replaced to itself, so only the rest is compared.
        assert trained.losses == pytest.approx(losses, rel=1e-10)
        return
    assert not far(trained.state, outcome(losses, modules))


@pytest.mark.parametrize("linearize", LINEARIZE)
@pytest.mark.parametrize("method", [(FDG, fdg), (DDG, ddg)], ids=["fdg", "ddg"])
@pytest.mark.parametrize("net", [mlp, conv])
@pytest.mark.parametrize("step", ["fused", "foreach"])
def test_every_step_of_an_optimizer_is_held_to_the_linearization(step, net, method, linearize):
    """Close in float64: autograd does not see the writes of a fused step."""
    ours, naive = method
    batches, modules = data(net, 10), net(3)
    losses = naive.train(modules, batches, loss=cross_entropy, linearize=linearize, **SGD)
    fused = train(
        ours(linearize=linearize), net(3), batches, optimizer=partial(sgd, **{step: True})
    )
    assert not far(fused.state, outcome(losses, modules))


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
    with pytest.raises(LinearizeError, match=r"\(5,\) .* in place .*'recompute'") as caught:
        train(FDG(linearize=linearize), modules, data(mlp, 8))
    assert "(stage 0, batch 0, tick 4: B0.0)" in caught.value.__notes__


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


@SAVING
@unmoved
@reentrance
def test_checkpointing_in_a_stage_without_delay_is_allowed(reentrant, linearize):
    first, middle, last = checkpointed(reentrant=reentrant)
    modules = [first, nn.Sequential(middle, last)]
    train(FDG(linearize=linearize), modules, data(mlp, 8))


class Replacing(torch.optim.SGD):
    """An optimizer that replaces weights by others with the strides of their transposes."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = (p - group["lr"] * p.grad).t().contiguous().t()


def test_live_refuses_weights_that_are_replaced_by_others_of_another_layout():
    with pytest.raises(LinearizeError, match=r"\(\d, \d\) was replaced"):
        train(FDG(linearize="live"), mlp(3), data(mlp, 8), optimizer=partial(Replacing, lr=0.1))
