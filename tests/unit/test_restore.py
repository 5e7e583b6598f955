"""Forwards that only look leave a network as it was, whatever they change in it."""

from collections import deque
from functools import partial

import numpy
import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

from contract.small import sgd, train_beside_plain
from hocket import Trainer
from hocket.restore import restore_state
from unit.partition.networks import Chain


class ActNorm(nn.Module):
    """Normalization whose weights are set by the first batch in training mode."""

    def __init__(self, flag):
        super().__init__()
        self.loc, self.scale = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))
        self.flag = flag
        if flag == "buffer":
            self.register_buffer("done", torch.tensor(0))
        else:
            self.done = 0

    def forward(self, x):
        if self.training and not self.done:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-6))
            self.done = torch.tensor(1) if self.flag == "buffer" else 1
        return self.scale * (x + self.loc)


class Mean(nn.Module):
    """Layer with a buffer that is None before the first forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return x - self.mean


class Counting(nn.Module):
    """Layer with numbers, a list and a dict as attributes."""

    def __init__(self):
        super().__init__()
        self.steps, self.seen, self.shapes = 0, [], {}

    def forward(self, x):
        self.steps += 1
        self.seen.append(len(x))
        self.shapes[len(x)] = self.last = x.shape
        return x * self.steps


def quantized():
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    network.qconfig = get_default_qat_qconfig("fbgemm")
    return prepare_qat(network.train())


BETWEEN = {
    "weights and a buffer": lambda: ActNorm("buffer"),
    "weights and an attribute": lambda: ActNorm("attribute"),
    "a buffer of None": Mean,
    "attributes": Counting,
}
NETWORKS = {
    name: lambda build=build: nn.Sequential(
        nn.Linear(8, 8), build(), nn.ReLU(), nn.Linear(8, 3)
    )
    for name, build in BETWEEN.items()
} | {"observers whose buffers grow": quantized}


def built(name, *, sequence):
    torch.manual_seed(0)
    network = NETWORKS[name]()
    return network if sequence else Chain(network)


def batches():
    torch.manual_seed(1)
    return [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(3)]


@pytest.mark.filterwarnings(
    "ignore:.*will be deprecated", "ignore:.*is deprecated", "ignore:without weights to train"
)
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_that_change_in_a_forward_train_as_in_a_plain_loop(name, sequence):
    plain, trained = (built(name, sequence=sequence) for _ in range(2))
    ours, theirs, _ = train_beside_plain(trained, 2, batches(), plain=plain)
    assert ours == theirs


def test_layers_that_decide_their_sizes_in_a_forward_keep_them():
    network = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with restore_state(network):
        network(torch.ones(2, 3))
    assert network[0].in_features == 3
    assert network[1].running_mean.shape == (4,)


class Built(nn.Module):
    """Layer that makes a part of itself in its first forward, and notes that it has."""

    def __init__(self, what):
        super().__init__()
        self.what, self.head, self.width, self.done = what, None, None, False
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        if not self.done:
            self.done, self.width = True, x.shape[1]
            if self.what == "a layer":
                self.head = nn.Linear(self.width, 8)
            elif self.what == "a weight":
                self.scale = nn.Parameter(torch.full((8,), 2.0))
            else:
                with torch.no_grad():
                    self.first.weight.mul_(2)
        x = self.first(x).view(-1, self.width)
        if self.what == "a weight":
            return x * self.scale
        return x if self.head is None else self.head(x)


@pytest.mark.parametrize("what", ["a layer", "a weight", "other numbers"])
def test_what_a_first_forward_makes_is_made_once_and_trained(what):
    torch.manual_seed(0)
    network = nn.Sequential(Built(what), nn.ReLU(), nn.Linear(8, 3))
    before = network[0].first.weight.clone()
    trainer = Trainer(network, stages=2, method="bp", optimizer=partial(sgd, lr=0.0))
    trainer.fit(batches(), epochs=1, progress=False)
    times = 2 if what == "other numbers" else 1
    assert torch.equal(network[0].first.weight, before * times)
    trained = {p for stage in trainer.stages for p in stage.updater.parameters}
    assert trained == set(network.parameters())


class Keeping(nn.Module):
    """Layer with tensors, arrays and collections within collections as attributes."""

    def __init__(self):
        super().__init__()
        self.mean, self.array = torch.zeros(8), numpy.zeros(1)
        self.recent, self.nested = deque(maxlen=9), {"a": [], "b": {"c": set()}}
        self.use_hooks = True

    def forward(self, x):
        self.mean.add_(1)
        self.mean.data.add_(1)
        self.array += 1
        self.last = x
        self.recent.append(1)
        self.nested["a"].append(1)
        self.nested["b"]["c"].add(len(self.nested["a"]))
        return x


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_buffers_of_any_kind_are_left_or_restored():
    layer = nn.Module()
    layer.register_buffer("sparse", torch.eye(2).to_sparse())
    layer.register_buffer("pairs", torch.zeros(2, dtype=torch.complex32))
    layer.register_buffer("small", torch.zeros(2).to(torch.float8_e4m3fn))
    with torch.inference_mode():
        layer.register_buffer("inference", torch.zeros(2))
    with restore_state(layer):
        layer.pairs.fill_(1)
        layer.small.copy_(torch.ones(2))
    assert not torch.view_as_real(layer.pairs).any()
    assert not layer.small.float().any()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore:.*will be deprecated")
def test_scripted_layers_and_losses_are_left_as_they_are(tmp_path):
    scripted = torch.jit.script(nn.Linear(8, 8))
    network = nn.Sequential(nn.Linear(8, 8), scripted, nn.Linear(8, 3))
    loss = torch.jit.script(nn.CrossEntropyLoss(weight=torch.ones(3)))
    trainer = Trainer(network, stages=2, method="bp", optimizer=sgd, loss=loss, resumable=True)
    trainer.fit(batches(), batches(), epochs=1, progress=False)
    trainer.save(tmp_path)
    assert list(tmp_path.glob("tick-*"))


def test_tensors_arrays_and_nested_collections_are_restored_in_place():
    """Also a collection that holds itself."""
    layer = Keeping()
    layer.ring = ring = [1]
    ring.append(ring)
    kept = layer.mean, layer.array, layer.recent, layer.nested
    with restore_state(layer):
        layer(torch.ones(1))
        ring.append(2)
    now = layer.mean, layer.array, layer.recent, layer.nested
    assert all(one is other for one, other in zip(now, kept, strict=True))
    assert not layer.mean.any()
    assert not layer.array.any()
    assert not layer.recent
    assert layer.nested == {"a": [], "b": {"c": set()}}
    assert len(ring) == 2
    assert ring[1] is ring
    assert not hasattr(layer, "last")
