"""The naive references do what their papers say, before anything is compared with them.

The laws of `contract/test_laws.py` hold for them too, as methods equal them to the bit.
"""

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.small import (
    CLASSES,
    LINEARIZE,
    ORDERS,
    SGD,
    Batches,
    conv,
    data,
    different,
    far,
    mlp,
    outcome,
)
from hocket import cross_entropy
from reference import adl, bp, ddg, dgl, dni, dsp, fdg, fr

Train = Callable[..., list[float]]

# Every delayed method at every choice of its options, by name.
DELAYED: dict[str, Train] = {}
for name, method in {"ddg": ddg, "fdg": fdg, "adl": adl}.items():
    for how, order in itertools.product(LINEARIZE, ORDERS):
        DELAYED[f"{name} {how} {order}"] = partial(method.train, linearize=how, order=order)
for name, method in {"fr": fr, "dsp": dsp}.items():
    for order in ORDERS:
        DELAYED[f"{name} recompute {order}"] = partial(method.train, order=order)
BATCHES = data(mlp, 7)


def run(
    train: Train, modules: list[nn.Module], batches: Batches, **options: Any
) -> list[Tensor]:
    """Train, and return the losses, then every weight and every statistic."""
    losses = train(modules, batches, **{"loss": cross_entropy, **SGD, **options})
    assert len(losses) == len(batches)
    return outcome(losses, modules)


# M and beta, for the methods that have them.
CHAINS = [(name, 1, 1.0) for name in DELAYED]
CHAINS += [(name, 1, 0.5) for name in DELAYED if name[:4] in ("fdg ", "adl ")]
CHAINS += [
    (name, M, beta) for name in DELAYED if name[:3] == "adl" for M, beta in [(2, 1), (4, 0.5)]
]


def chain(
    name: str, M: int, beta: float, batches: Batches, weights: list[float]
) -> list[float]:
    """Compute the final weights of the chain h_k = tanh(w_k h_{k-1}) by formulas of staleness.

    There is no tick here: batch b meets version (b-1-missed) // M of module k in its forward,
    and version (b-1) // M when its gradient is taken.
    """
    method, linearize, order = name.split()
    K, N = len(weights), len(batches)
    w = [[value] for value in weights]  # w[k-1][v]: module k after v updates
    dw = [[] for _ in weights]
    for b, (x, y) in enumerate(batches, 1):
        h, slopes, back = [x.item()], [], []
        for k in range(1, K + 1):
            missed = (K - k) * (1 if method in ("ddg", "fr") else 2)
            missed -= order == "backward-first" and k < K
            seen, now = w[k - 1][max(0, b - 1 - missed) // M], w[k - 1][(b - 1) // M]
            slopes.append(
                1 - math.tanh((now if linearize == "recompute" else seen) * h[-1]) ** 2
            )
            back.append(seen if linearize == "stash" else now)
            h.append(math.tanh(seen * h[-1]))
        g = 2 * (h[-1] - y.item())
        for k in range(K, 0, -1):
            g *= slopes[k - 1] * (beta if k < K else 1)
            dw[k - 1].append(g * h[k - 1])
            g *= back[k - 1]
            if b % M == 0 or b == N:
                group = dw[k - 1][(b - 1) // M * M :]
                w[k - 1].append(w[k - 1][-1] - 0.5 * sum(group) / len(group))
    return [versions[-1] for versions in w]


@pytest.mark.parametrize("modules", [2, 4])
@pytest.mark.parametrize(("name", "M", "beta"), CHAINS)
def test_scalar_chain_follows_the_formulas_of_staleness(
    name: str, M: int, beta: float, modules: int
) -> None:
    make = torch.Generator().manual_seed(1)
    numbers = torch.randn(2, 11, 1, 1, generator=make, dtype=torch.double)
    batches, net = list(zip(*numbers, strict=True)), []
    weights = [1.5 - 0.25 * k for k in range(modules)]
    for weight in weights:
        net.append(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh()).double())
        nn.init.constant_(net[-1][0].weight, weight)
    options = {"accumulate": M} if M > 1 else {}
    options |= {"shrink": beta} if beta < 1 else {}
    DELAYED[name](net, batches, loss=nn.functional.mse_loss, lr=0.5, **options)
    ends = [module[0].weight.item() for module in net]
    assert ends == pytest.approx(chain(name, M, beta, batches, weights), rel=1e-10)


def test_official_fr_doubles_the_first_rate_and_the_statistics() -> None:
    start, plain, fast = conv(3), conv(3), conv(3)
    batches, options = data(conv, 1), {"weight_decay": 0.0}
    run(fr.train, plain, batches, **options)
    run(fr.train, fast, batches, first_rate=2.0, statistics_twice=True, **options)
    for factor, a, b, c in zip([2, 1, 1], start, plain, fast, strict=True):
        assert torch.allclose(c[0].weight - a[0].weight, factor * (b[0].weight - a[0].weight))
    assert [m[1].num_batches_tracked.item() for m in plain] == [1, 1, 1]
    assert [m[1].num_batches_tracked.item() for m in fast] == [2, 2, 1]


def test_dgl_trains_each_module_as_a_network_of_its_own() -> None:
    net, alone = mlp(3), mlp(3)
    heads = [nn.Linear(5, CLASSES).double() for _ in range(2)]
    pairs = [
        [alone[0], copy.deepcopy(heads[0])],
        [alone[1], copy.deepcopy(heads[1])],
        alone[2:],
    ]
    inputs = {k: [x for x, _ in BATCHES] if k == 0 else [] for k in range(4)}
    for k, module in enumerate(net, 1):
        module.register_forward_hook(lambda _, args, h, k=k: inputs[k].append(h.detach()))
    run(dgl.train, net, BATCHES, heads=heads)
    labels = [y for _, y in BATCHES]
    for k, pair in enumerate(pairs):
        run(bp.train, pair, list(zip(inputs[k], labels, strict=True)))
        trained = [net[k], *heads[k : k + 1]]
        ends = (nn.Sequential(*each).parameters() for each in (trained, pair))
        assert not different(*ends)
    alone = run(bp.train, mlp(1), BATCHES)
    assert not different(run(dgl.train, mlp(1), BATCHES, heads=[]), alone)


class Oracle(nn.Module):
    """Synthesizer that computes the true gradient from the rest of the network."""

    def __init__(self, rest: list[nn.Module]) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros((), dtype=torch.double))
        self.rest = nn.Sequential(*rest)

    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            return torch.autograd.grad(cross_entropy(self.rest(h), y), h)[0] + 0 * self.unused


@pytest.mark.parametrize("target_delay", [0, 1])
def test_dni_with_true_gradients_is_back_propagation(target_delay: int) -> None:
    net = mlp(3)
    options = {"conditional": True, "target_delay": target_delay}
    options["synthesizers"] = [Oracle(net[1:]), Oracle(net[2:])]
    found = run(dni.train, net, BATCHES, **options)
    assert not far(found, run(bp.train, mlp(3), BATCHES), 1e-12)


class Synthesizer(nn.Linear):
    """Synthesizer that starts at zero and ignores the label."""

    def __init__(self) -> None:
        super().__init__(5, 5, dtype=torch.double)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Tensor, y: Tensor | None) -> Tensor:
        assert y is None
        return super().forward(h)


@pytest.mark.parametrize("target_delay", [0, 1])
def test_dni_target_is_the_input_gradient_and_comes_after_its_delay(target_delay: int) -> None:
    net, s, options = mlp(2), Synthesizer(), {"weight_decay": 0.0, "target_delay": target_delay}
    x, y = BATCHES[0]
    h = net[0](x).detach().requires_grad_()
    (r,) = torch.autograd.grad(cross_entropy(net[1](h), y), h)
    run(dni.train, net, BATCHES[:1], synthesizers=[s], **options)
    assert torch.allclose(s.bias, SGD["lr"] * 2 * r.sum(0) / len(x), 1e-12)
    assert torch.allclose(s.weight, SGD["lr"] * 2 * r.T @ h / len(x), 1e-12)
    net = mlp(2)
    run(dni.train, net, BATCHES[:2], synthesizers=[Synthesizer()], **options)
    moved = different(net[0].parameters(), mlp(2)[0].parameters())
    assert bool(moved) == (target_delay == 0)
