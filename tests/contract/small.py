"""Networks small enough for a law a millisecond, and one way to train them.

Equal seeds give equal networks, so that two trainings can be compared tensor by tensor.
"""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hocket import Trainer, cross_entropy, cut
from hocket.engine.event import Event, Watcher
from hocket.methods import METHODS as ALL_METHODS
from hocket.methods import as_method, method_options
from hocket.methods.method import Method
from hocket.signals import Delayed
from hocket.stage import Stage
from hocket.training.results.metrics import EpochResult
from hocket.tree import map_tensors
from reference import bp
from unit.partition.networks import Skips

CLASSES = 3
Batches = list[tuple[Tensor, Tensor]]
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}

# Methods of networks that need not be reversible; the laws of others are in `test_invert`.
METHODS = {name: build for name, build in ALL_METHODS.items() if build().linearize != "invert"}
# Methods by what their registry entry can be asked for.
WAITING = [name for name, build in METHODS.items() if build().signal.needs_gradient]
LOCKSTEP = [name for name, build in METHODS.items() if not build().free_running]
STAGES = [1, 2, 3, 4]
ORDERS = ["forward-first", "backward-first"]
LINEARIZE = ["stash", "live", "recompute"]
TRAINER_OPTIONS = inspect.signature(Trainer).parameters.keys()


def table(**choices: Any) -> Method:
    """A method that no preset offers."""
    asked = {"signal": Delayed(), "forward_delay": 1, "backward_delay": 1, **choices}
    return Method(name="table", paper="none", **asked)


def once_each(methods: Iterable[str]) -> list[str]:
    """Methods in text form, without those that differ from an earlier one in the name only."""
    found: dict[Method, str] = {}
    for text in methods:
        found.setdefault(replace(as_method(text), name="", paper=""), text)
    return list(found.values())


LINEARIZED = once_each(
    [
        *METHODS,
        *(
            f"{name}:linearize={kind}"
            for name in METHODS
            for kind in LINEARIZE
            if "linearize" in method_options(name)
        ),
    ]
)
"""Every method, and every linearization that it can be asked for."""


def mlp(stages: int, *, dropout: float = 0.0) -> list[nn.Module]:
    """Stages of two layers each, so that even the first one has an inner weight."""
    torch.manual_seed(0)
    built = [
        nn.Sequential(
            nn.Linear(5, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 5), nn.Tanh()
        )
        for _ in range(stages)
    ]
    built[-1].append(nn.Linear(5, CLASSES))
    return [stage.double() for stage in built]


def conv(stages: int, *, dropout: float = 0.0, channels: int = 2) -> list[nn.Module]:
    """Stages with BatchNorm and an in-place ReLU in between."""
    torch.manual_seed(0)
    built = [
        nn.Sequential(
            nn.Conv2d(channels if k else 2, 2, 3, padding=1),
            nn.BatchNorm2d(2),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropout),
            nn.Conv2d(2, channels, 3, padding=1),
        )
        for k in range(stages)
    ]
    built[-1].extend([nn.Flatten(), nn.Linear(9 * channels, CLASSES)])
    return [stage.double() for stage in built]


def wide(stages: int, **options: Any) -> list[nn.Module]:
    """The same with more channels at the edges."""
    return conv(stages, channels=5, **options)


def skips(stages: int, *, dropout: float = 0.0) -> list[nn.Module]:
    """Parts of the forward of a network that is no chain; several tensors cross borders."""
    torch.manual_seed(0)
    network = Skips(blocks=3).double()
    network.drop.p = dropout
    return cut(network, stages=stages, sample=torch.randn(3, 4, dtype=torch.double))


class Sending(nn.Module):
    """Stage that sends views of its weights and statistics, a spectrum and a mask."""

    def __init__(self, *, clones: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.weight = nn.Parameter(torch.randn(5, 5))
        self.norm = nn.BatchNorm1d(5)
        self.clones = clones

    def forward(self, x: Tensor) -> Any:
        h = self.norm(self.linear(x))
        sent = {
            "h": h,
            "weight": self.weight,
            "row": (self.weight[0].expand(len(h), 5), self.weight.T),
            "mean": self.norm.running_mean,
            "spectrum": torch.fft.rfft(h),
            "mask": nn.Transformer.generate_square_subsequent_mask(5, dtype=h.dtype),
            "order": [torch.randperm(5), None, 0.5],
        }
        return map_tensors(Tensor.clone, sent) if self.clones else sent


class Mixing(nn.Module):
    """Stage that sends on what it received, beside a new sum of all of it."""

    def __init__(self, dropout: float, *, last: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("bank", torch.zeros(0))  # grows in the first forwards
        self.head = nn.Linear(5, CLASSES) if last else None

    def forward(self, got: Any) -> Any:
        order, _, half = got["order"]
        row, transposed = got["row"]
        mixed = self.dropout(self.linear(got["h"])).tanh()[:, order] @ got["weight"].T
        mixed = mixed + half * row * got["mean"] + (mixed @ transposed) * half
        mixed = mixed + torch.fft.irfft(got["spectrum"] * self.filter, n=5) + self.bank.sum()
        self.bank = torch.cat([self.bank, mixed.detach().mean()[None]])[-3:]
        mixed = mixed @ (got["weight"] + got["mask"]).softmax(-1)
        return got | {"h": mixed} if self.head is None else self.head(mixed)


def everything(stages: int, *, dropout: float = 0.0, clones: bool = False) -> list[nn.Module]:
    """Two stages or more, over whose edges goes all that may be sent."""
    torch.manual_seed(0)
    middle = [Mixing(dropout, last=False) for _ in range(stages - 2)]
    built = [Sending(clones=clones), *middle, Mixing(dropout, last=True)]
    return [stage.double() for stage in built]


class Network(nn.Module):
    """Layers by name, for a forward that a test gives them."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Centred(nn.Module):
    """A layer whose forward reads what those before it have left, in a new buffer each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.double))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean()
        return inputs - self.mean


class Recurrent(nn.Module):
    """Last output of a recurrence over the features, one at a time."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(1, 5, num_layers=2, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.cell(values[..., None])[0][:, -1]


class Coupled(nn.Module):
    """A reversible layer: it adds a function of one half to the other, and swaps them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        half = features // 2
        self.body = nn.Sequential(nn.Linear(half, half), nn.BatchNorm1d(half), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, 1)
        return torch.cat((x2 + self.body(x1), x1), 1)

    def reverse(self, y: Tensor) -> Tensor:
        y1, y2 = y.chunk(2, 1)
        return torch.cat((y2, y1 - self.body(y2)), 1)


def coupled(stages: int, *, dropout: float = 0.0) -> list[nn.Module]:
    """Stages of two reversible layers; the second and the last one have others as well.

    Dropout is in the second one only: the inverse of a layer could not draw its mask again.
    """
    torch.manual_seed(0)
    built = [nn.Sequential(Coupled(6), Coupled(6)) for _ in range(stages)]
    if stages > 1:
        built[1].extend([nn.Linear(6, 6), nn.Dropout(dropout)])
    built[-1].append(nn.Linear(6, CLASSES))
    return [stage.double() for stage in built]


SHAPES = {
    mlp: (5,),
    coupled: (6,),
    conv: (2, 3, 3),
    wide: (2, 3, 3),
    skips: (4,),
    everything: (5,),
}
Net = Callable[..., list[nn.Module]]


def data(net: Net, count: int, size: int = 4, last: int | None = None) -> Batches:
    """Batches for a network; the last one may be short."""
    make = torch.Generator().manual_seed(1)
    sizes = [size] * (count - 1) + [last or size]
    return [
        (
            torch.randn(n, *SHAPES[net], generator=make, dtype=torch.double),
            torch.randint(CLASSES, (n,), generator=make),
        )
        for n in sizes
    ]


class WatchedBatches(list[tuple[Tensor, Tensor]]):
    """Batches that call a function before each: with the number of the reading, and its own."""

    def __init__(self, batches: Batches, before: Callable[[int, int], object]):
        super().__init__(batches)
        self.before, self.readings = before, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        reading, self.readings = self.readings, self.readings + 1
        for number, batch in enumerate(super().__iter__()):
            self.before(reading, number)
            yield batch


def sgd(params: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """The optimizer of the laws; options replace its own."""
    return torch.optim.SGD(params, **{**SGD, **options})


def tensors_of(*networks: nn.Module) -> list[Tensor]:
    """All weights and statistics, network after network."""
    return [value for network in networks for value in network.state_dict().values()]


def values_of(trainer: Trainer) -> list[Tensor]:
    """Weights and statistics of stages and of their signals."""
    stages = trainer.stages
    return tensors_of(*(net for s in stages for net in (s.module, s.signal_network)))


def outcome(losses: list[float], *networks: Sequence[nn.Module]) -> list[Tensor]:
    """The losses, then all weights and statistics, stage after stage."""
    grouped = itertools.zip_longest(*networks)
    modules = [module for group in grouped for module in group if module is not None]
    return [torch.tensor(losses, dtype=torch.double), *tensors_of(*modules)]


@dataclass
class Trained:
    """What a training left behind, and every event on its way."""

    trainer: Trainer
    events: list[Event] = field(default_factory=list)
    history: list[EpochResult] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """The losses of the last stage, batch after batch."""
        last = len(self.trainer.stages) - 1
        return [
            e.report.loss
            for e in self.events
            if e.action.kind == "B" and e.action.stage == last
        ]

    @property
    def state(self) -> list[Tensor]:
        """Losses, weights and statistics of stages and of their signals."""
        return [torch.tensor(self.losses, dtype=torch.double), *values_of(self.trainer)]

    def of(self, kind: str, stage: int) -> list[Event]:
        """The events of one kind at one stage."""
        mine = [e for e in self.events if e.action.stage == stage]
        return [e for e in mine if e.action.kind == kind]


def train(
    method: Method | str,
    modules: Sequence[nn.Module],
    batches: Batches,
    *,
    epochs: int = 1,
    watch: Watcher | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    **options: Any,
) -> Trained:
    """Train stages with a method until nothing is in flight.

    Options are those of the trainer, and others of the optimizer of the laws.
    """
    events: list[Event] = []
    given = {name: options.pop(name) for name in TRAINER_OPTIONS & options.keys()}
    trainer = Trainer(
        modules,
        method=method,
        optimizer=optimizer or partial(sgd, **options),
        watchers=[lambda event, _: events.append(event), *([watch] if watch else [])],
        **given,
    )
    history = trainer.fit(batches, epochs=epochs, progress=False)
    return Trained(trainer, events, history)


def stepped(trainer: Trainer, batches: Iterable[tuple[Tensor, Tensor]]) -> Trainer:
    """The trainer after a step with each batch."""
    for batch in batches:
        trainer.step(*batch)
    return trainer


def back_propagate(
    modules: Sequence[nn.Module], batches: Batches, *, epochs: int = 1, **options: Any
) -> list[Tensor]:
    """A plain training loop; the losses, then every weight and every statistic."""
    asked = {"loss": cross_entropy, **SGD, **options}
    return outcome(bp.train(modules, batches * epochs, **asked), modules)


def train_beside_plain(
    network: nn.Module,
    stages: Any,
    batches: Batches,
    *,
    plain: nn.Module | None = None,
    change: Callable[[nn.Module, int], None] = lambda network, step: None,
) -> tuple[list[float], list[float], nn.Module]:
    """Train by back-propagation, and a copy without Hocket.

    Returns:
        The losses of both, and the copy.
    """
    plain = copy.deepcopy(network) if plain is None else plain
    optimizer = sgd(plain.parameters())
    trainer = Trainer(network, stages=stages, method="bp", optimizer=sgd)
    ours, theirs = [], []
    for step, (inputs, targets) in enumerate(batches):
        change(network, step)
        change(plain, step)
        ours.append(trainer.step(inputs, targets))
        optimizer.zero_grad()
        value = F.cross_entropy(plain(inputs), targets)
        value.backward()
        optimizer.step()
        theirs.append(value.item())
    trainer.finish()
    return ours, theirs, plain


class Gradients:
    """Watches a training: the gradients of each batch at each stage."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], list[Tensor]] = {}

    def __call__(self, event: Event, stage: Stage) -> None:
        """Copy them after a backward."""
        if event.action.kind == "B":
            self.seen[stage.index, event.action.batch] = [g.clone() for g in stage.gradients]


def true_gradients(
    modules: Sequence[nn.Module], x: Tensor, y: Tensor, weights: list[dict[str, Tensor]]
) -> list[list[Tensor]]:
    """Autograd's gradient of the composed network with the weights given for each stage."""
    value, leaves = x, []
    for module, named in zip(modules, weights, strict=True):
        own = {
            n: named[n].detach().clone().requires_grad_() for n, _ in module.named_parameters()
        }
        buffers = {n: b.clone() for n, b in module.named_buffers()}
        leaves.append(list(own.values()))
        value = torch.func.functional_call(module, {**own, **buffers}, (value,))
    flat = [leaf for stage in leaves for leaf in stage]
    found = iter(torch.autograd.grad(cross_entropy(value, y), flat))
    return [[next(found) for _ in stage] for stage in leaves]


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters."""
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def different(a: Iterable[Tensor], b: Iterable[Tensor]) -> list[str]:
    """The tensors that are not bit-equal, as text; empty when all are."""
    return [
        f"tensor {i}: largest difference {(x - y).abs().max():.3g}"
        for i, (x, y) in enumerate(zip(a, b, strict=True))
        if not torch.equal(x, y)
    ]


def bits(state: object) -> object:
    """A state in which tensors can be compared by their bits."""
    if isinstance(state, Tensor):
        return state.dtype, tuple(state.shape), state.cpu().numpy().tobytes()
    if isinstance(state, dict):
        return {key: bits(value) for key, value in state.items()}
    return [bits(value) for value in state] if isinstance(state, list) else state


def far(a: Iterable[Tensor], b: Iterable[Tensor], tolerance: float = 1e-10) -> list[str]:
    """The tensors that are not close in float64, as text; empty when all are."""
    return [
        f"tensor {i}: largest difference {(x - y).abs().max():.3g}"
        for i, (x, y) in enumerate(zip(a, b, strict=True))
        if not torch.allclose(x, y, tolerance, tolerance * 1e-2)
    ]


def put_into_one_memory(parameters: Sequence[nn.Parameter]) -> None:
    """Give all parameters parts of one memory, with the values that they have."""
    vector_to_parameters(parameters_to_vector(parameters).detach(), parameters)


def copied(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Deep copies, to train beside the originals."""
    return [copy.deepcopy(module) for module in modules]
