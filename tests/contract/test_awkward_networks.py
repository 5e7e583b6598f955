"""Networks with states, modes, hooks and outputs of their own train as without cuts."""

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hocket
from contract.processes import in_processes
from contract.small import (
    LOCKSTEP,
    Network,
    data,
    different,
    mlp,
    sgd,
    stepped,
    train_beside_plain,
)
from hocket.errors import CutError, OptionError

INPUTS = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 1, 2, 0])
BATCHES = [(INPUTS, TARGETS)] * 4
CUT_BEFORE_B = hocket.Plan(("b",))
BOTH = pytest.mark.parametrize("stages", [1, CUT_BEFORE_B], ids=["whole", "cut"])


class Cooled(Network):
    """Layers `p`, `b` and `c`, with a temperature that `p` returns beside its output."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, temperature = self.p(inputs)
        return self.c(self.b(hidden)) / temperature


class Warm(Network):
    temperature = 1.0

    def forward(self, inputs: Tensor) -> tuple[Tensor, float]:
        return self.linear(inputs), self.temperature + (0.0 if self.training else 1.0)


def cool(network: nn.Module, step: int) -> None:
    network.p.temperature = 0.5**step


def freeze(network: nn.Module, step: int) -> None:
    if step == 1:
        network.p.eval()


class Narrow(nn.Linear):
    """A layer that returns as many columns as its attribute says."""

    width = 6

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, : self.width]


class Narrowed(Network):
    """Layers `p`, `b` and `c`; the width of the output of `p` is read behind `b`."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.p(inputs)
        return self.c(self.b(hidden.sum(1, keepdim=True))) / hidden.shape[1]


def narrow(network: nn.Module, step: int) -> None:
    network.p.width = 6 - step


@BOTH
@pytest.mark.parametrize("change", [cool, freeze, narrow])
def test_numbers_and_sizes_that_a_module_decides_are_those_of_now(stages, change):
    network = Cooled(p=Warm(linear=nn.Linear(5, 6)), b=nn.Linear(6, 6), c=nn.Linear(6, 3))
    if change is narrow:
        network = Narrowed(p=Narrow(5, 6), b=nn.Linear(1, 6), c=nn.Linear(6, 3))
    ours, theirs, _ = train_beside_plain(network, stages, BATCHES, change=change)
    assert ours == pytest.approx(theirs, rel=1e-6)


class OwnStatistics(nn.Module):
    """A network whose own forward has the buffers of a norm, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), Counted()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.a(inputs)
        return self.b(F.batch_norm(hidden, self.mean, self.var, training=self.training))


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.count += 1
        return self.linear(inputs)


@BOTH
def test_buffers_see_the_batches_of_the_training_and_nothing_else(stages):
    network = OwnStatistics()
    _, _, plain = train_beside_plain(network, stages, BATCHES)
    assert network.b.count == plain.b.count == 4
    torch.testing.assert_close(network.mean, plain.mean)
    torch.testing.assert_close(network.var, plain.var)


def add_backward_hook(inner: nn.Module) -> None:
    inner.register_full_backward_pre_hook(lambda _, gradients: tuple(g * 3 for g in gradients))


def add_forward(inner: nn.Module) -> None:
    inner.forward = lambda inputs: nn.Sequential.forward(inner, inputs) * 2


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("add", [add_backward_hook, add_forward])
@pytest.mark.parametrize("stages", [1, hocket.Plan(("1",))], ids=["whole", "cut"])
def test_hooks_and_forwards_of_one_sequence_are_kept(add, stages):
    network = nn.Sequential(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3))
    plain = copy.deepcopy(network)
    add(network[0])
    add(plain[0])
    ours, theirs, _ = train_beside_plain(network, stages, BATCHES, plain=plain)
    assert ours == pytest.approx(theirs, rel=1e-6)
    torch.testing.assert_close(list(network.parameters()), list(plain.parameters()))


class Wrapped(Network):
    def forward(self, inputs: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.b(self.a(inputs)))


def test_an_output_without_tensors_is_refused_with_the_remedy():
    trainer = hocket.Trainer(
        Wrapped(a=nn.Linear(5, 6), b=nn.Linear(6, 3)),
        stages=CUT_BEFORE_B,
        method="bp",
        optimizer=sgd,
        loss=lambda output, targets: F.cross_entropy(output.logits, targets),
    )
    with pytest.raises(CutError, match=r"no tensors are found in .*pytree_node"):
        trainer.step(INPUTS, TARGETS)


class SparseWords(Network):
    def forward(self, words: Tensor) -> Tensor:
        return self.b(self.a(words).mean(1))


def test_sparse_embeddings_can_be_cut():
    network = SparseWords(a=nn.Embedding(9, 6, sparse=True), b=nn.Linear(6, 3))
    stages = hocket.cut(network, stages=2, sample=torch.randint(0, 9, (4, 3)))
    assert len(stages) == 2


@pytest.mark.parametrize("method", ["bp", "fdg"])
def test_a_stage_without_trained_weights_takes_half_precision(method):
    network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    network[0].requires_grad_(False)
    trainer = hocket.Trainer(
        network, stages=hocket.Plan(("1", "2")), method=method, precision="fp16", optimizer=sgd
    )
    before = network[3].weight.clone()
    stepped(trainer, BATCHES)
    assert not torch.equal(before, network[3].weight)


class Force(Network):
    """Negative gradient of an energy, as networks of atoms return it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


class AroundForce(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.force(self.a(x)))


@pytest.mark.parametrize("stages", [1, CUT_BEFORE_B, 2], ids=["whole", "cut", "sequential"])
def test_a_network_may_differentiate_in_its_forward(stages):
    force = Force(a=nn.Linear(5, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 1))
    network = AroundForce(a=nn.Linear(5, 5), force=force, b=nn.Linear(5, 3))
    if stages == 2:
        network = nn.Sequential(network.a, force, network.b)
    losses, plain_losses, _ = train_beside_plain(network, stages, BATCHES)
    assert losses == plain_losses


def test_a_loss_that_reads_a_tensor_of_another_stage_is_refused():
    class Keeping(Network):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.a(x)
            self.kept = hidden.square().mean()
            return self.b(hidden)

    network = Keeping(a=nn.Linear(5, 5), b=nn.Linear(5, 3))
    loss = lambda output, y: F.cross_entropy(output, y) + network.kept  # noqa: E731
    trainer = hocket.Trainer(
        network, stages=CUT_BEFORE_B, method="bp", optimizer=sgd, loss=loss
    )
    with pytest.raises(OptionError, match="the loss uses a tensor of an earlier stage, which"):
        trainer.step(INPUTS, TARGETS)


def test_a_network_wrapped_for_data_parallel_training_is_refused():
    class Wrapped(nn.parallel.DistributedDataParallel):
        def __init__(self, module: nn.Module) -> None:  # without a process group
            nn.Module.__init__(self)
            self.module = module

    network = nn.Sequential(Wrapped(nn.Linear(5, 4)), nn.Linear(4, 3))
    with pytest.raises(CutError, match="the module '0' is wrapped for data-parallel training,"):
        hocket.Trainer(network, stages=2, method="bp", optimizer=sgd)
    with pytest.raises(CutError, match=r"'at the top' is wrapped .*; give the module in it"):
        hocket.Trainer(network[0], stages=1, method="bp", optimizer=sgd)


# What is kept of statistics depends on the linearization.
EACH_KIND = ("fdg", "fdg-official", "dsp", "dgl")


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in LOCKSTEP),
        *((name, {"on_nan": "skip"}) for name in EACH_KIND),
        *((name, {"check_every": 3}) for name in EACH_KIND),
    ],
    ids=str,
)
def test_a_scripted_layer_learns_as_the_layer_itself(name, options):
    left = []
    for make in (torch.jit.script, nn.Identity()):
        torch.manual_seed(0)
        norm = make(nn.BatchNorm1d(6))
        network = nn.Sequential(nn.Linear(5, 6), norm, nn.ReLU(), nn.Linear(6, 3)).double()
        trainer = hocket.Trainer(network, stages=2, method=name, optimizer=sgd, **options)
        trainer.fit(data(mlp, 6), epochs=2, progress=False)
        left.append(network.state_dict().values())
    assert not different(*left)


class PaddedEncoder(nn.Module):
    """Layers of a transformer which all get the same mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layers = (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(3))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        values = self.embed(tokens)
        for layer in self.layers:
            values = layer(values, src_key_padding_mask=padding)
        return self.head(values.mean(1))


class Gated(Network):
    def forward(self, values: Tensor, side: Tensor) -> Tensor:
        return values + self.layer(values).relu() * self.gate(side)


class SharedSide(nn.Module):
    """Blocks which all get what ``side`` makes of the inputs, as the time of a diffusion."""

    def __init__(self, side: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.side, self.first = side, nn.Linear(8, 8)
        gated = (Gated(layer=nn.Linear(8, 8), gate=nn.Linear(8, 8)) for _ in range(3))
        self.blocks = nn.ModuleList(gated)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        values, side = self.first(inputs), self.side(inputs)
        for block in self.blocks:
            values = block(values, side)
        return self.head(values)


WIDE = torch.randn(7, 8, generator=torch.Generator().manual_seed(2))
TOKENS = torch.randint(0, 20, (7, 5), generator=torch.Generator().manual_seed(3))
SHARED = {
    "mask": (PaddedEncoder, TOKENS),
    "module": (lambda: SharedSide(nn.Linear(8, 8)), WIDE),
    "function": (lambda: SharedSide(torch.sin), WIDE),
    "view": (lambda: SharedSide(lambda inputs: inputs.view(-1, 8)), WIDE),
}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("build", "inputs"), SHARED.values(), ids=SHARED.keys())
def test_values_that_stages_share_have_the_size_of_the_batch(build, inputs, stages):
    """The batch is larger than the sample by which the network was cut, or smaller."""
    torch.manual_seed(0)
    network = build()
    batches = [(inputs[:size], torch.arange(size) % 3) for size in (7, 3, 1)]
    ours, theirs, plain = train_beside_plain(network, stages, batches)
    assert ours == pytest.approx(theirs, rel=1e-5)
    trained, wanted = list(network.parameters()), list(plain.parameters())
    torch.testing.assert_close(trained, wanted, rtol=1e-5, atol=1e-6)


def lazily_trained(batches):
    """Weights after a training of layers that take their sizes from the first batch."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))
    with hocket.Trainer(network, stages=2, method="fdg", optimizer=sgd) as trainer:
        trainer.fit(batches, epochs=1, progress=False)
    return [weight.detach() for weight in network.parameters()]


def test_lazy_layers_have_the_same_sizes_and_weights_in_all_processes():
    """Also in those that read no data, and so forward nothing before the network is cut."""
    batches = [(torch.ones(4, 6) * number, torch.arange(4)) for number in range(5)]
    serial = lazily_trained(batches)
    for weights in in_processes(lazily_trained, batches, processes=2):
        assert different(weights, serial) == []


def test_lazy_layers_can_be_channels_last():
    network = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(4))
    trainer = hocket.Trainer(network, stages=2, optimizer=sgd, channels_last=True)
    trainer.prepare(torch.ones(2, 3, 6, 6))
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_lazy_layers_take_their_sizes_from_the_first_batch():
    network = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))
    trainer = hocket.Trainer(network, stages=2, method="fdg", optimizer=sgd)
    trainer.prepare(torch.ones(2, 6))
    known = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    known.load_state_dict(network.state_dict())
    batches = [(torch.randn(4, 6), torch.arange(4)) for _ in range(5)]
    expected = stepped(hocket.Trainer(known, stages=2, method="fdg", optimizer=sgd), batches)
    stepped(trainer, batches)
    assert not different(network.parameters(), expected.network.parameters())
