"""Replicas: statistics over all are those of BatchNorm, and gradients are summed."""

import copy
import pickle
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from contract.small import Network, sgd
from hocket import cut
from hocket.distributed.replicas import buckets, sync_batchnorm
from hocket.distributed.replicas.buckets import build_buckets
from hocket.distributed.replicas.exchange import SimulatedExchange
from hocket.distributed.replicas.gradient_sync import GradientSync
from hocket.distributed.replicas.sync_batchnorm import (
    SharedForward,
    require_replaceable_forwards,
    share_statistics,
    unshare_statistics,
)
from hocket.distributed.world.solo_world import SoloWorld
from hocket.engine.build_here import build_replicated
from hocket.engine.build_process import build_distributed
from hocket.engine.engine_parts import EngineParts
from hocket.errors import HocketError, OptionError
from hocket.methods import FDG
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.setup import Setup


def batchnorm(has):
    """Build a layer with a weight and a bias, a weight only, or neither."""
    layer = nn.BatchNorm2d(3, affine=has != "neither")
    if has != "neither":
        nn.init.constant_(layer.weight, 3.0)
        nn.init.constant_(layer.bias, 2.0)
    if has == "weight":
        layer.bias = None  # as with bias=False, which not every PyTorch has
    return layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("has", ["weight and bias", "weight", "neither"])
def test_an_input_of_few_bits_has_statistics_of_many(has, dtype, monkeypatch):
    monkeypatch.setattr(sync_batchnorm, "_all_reduce", lambda tensor, world: tensor.clone())
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    wanted, found = (batchnorm(has).to(wide) for _ in range(2))
    share_statistics(found, SimpleNamespace(left=False))
    x = (torch.randn(64, 3, 8, 8) + 3).to(dtype)
    output, expected = found(x), wanted(x)
    assert output.dtype == expected.dtype == dtype
    torch.testing.assert_close(output, expected)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


class Normed(Network):
    """A network whose own forward calls BatchNorm, and is cut."""

    def forward(self, x):
        return self.last(self.norm(self.first(x)) + x)


def test_a_part_of_a_forward_normalizes_by_all_replicas(monkeypatch):
    """Each has the same samples here, so that only running variances are others."""
    monkeypatch.setattr(sync_batchnorm, "_all_reduce", lambda tensor, world: 2 * tensor)
    network = Normed(first=nn.Linear(2, 2), norm=nn.BatchNorm1d(2), last=nn.Linear(2, 2))
    sample = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    stages = cut(network, stages=2, sample=sample)
    share_statistics(nn.ModuleList(stages), SimpleNamespace(left=False))
    stages[1](stages[0](sample))
    inside = network.first(torch.cat([sample, sample])).var(0)
    torch.testing.assert_close(network.norm.running_var, 0.9 + 0.1 * inside)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))]
)
def test_a_copy_of_a_network_normalizes_for_itself(copied):
    """So does a copy of the copy."""
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    own = copy.deepcopy(network)
    share_statistics(network, SimpleNamespace(left=False, lock=threading.Lock()))
    statistics = network[1].running_mean.clone()
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    wanted = own(x)
    for found in (copied(network), copied(copied(network))):
        nn.init.constant_(found[1].weight, 2.0)
        torch.testing.assert_close(found(x), 2 * wanted)
        torch.testing.assert_close(found[1].running_mean, own[1].running_mean)
        torch.testing.assert_close(found.eval()(x), 2 * copy.deepcopy(own).eval()(x))
    assert torch.equal(network[1].running_mean, statistics)
    assert network[1].weight.tolist() == [1.0, 1.0]
    assert isinstance(network[1].forward, SharedForward)


class Activated(nn.BatchNorm1d):
    """A layer that computes more than BatchNorm."""

    def forward(self, input):
        return super().forward(input).relu()


class Named(nn.BatchNorm1d):
    """A layer that computes what BatchNorm computes."""


def given_a_forward():
    layer = nn.BatchNorm1d(2)
    layer.forward = lambda x: nn.BatchNorm1d.forward(layer, x).relu()
    return layer


def shared_before():
    """Build a layer whose training was not closed, and that has no replicas any more."""
    layer = nn.BatchNorm1d(2)
    share_statistics(layer, SimpleNamespace(left=True))
    return layer


def test_forwards_that_compute_more_than_batchnorm_are_refused():
    network = nn.Sequential(
        Named(2), given_a_forward(), *(Activated(2) for _ in range(8)), Named(2)
    )
    with pytest.raises(OptionError) as caught:
        require_replaceable_forwards(network.named_modules())
    assert "have of their own: '1', '2', '3', " in str(caught.value)
    assert "'8', and 1 more; use batchnorm='local', or put" in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        Named(2),
        nn.SyncBatchNorm(2),
        nn.LazyBatchNorm1d(),
        nn.ReLU(),
        shared_before(),
        copy.deepcopy(shared_before()),
    ],
    ids=["subclass", "sync", "lazy", "another", "shared", "copied"],
)
def test_forwards_that_compute_what_batchnorm_computes_are_taken(layer):
    with pytest.raises(OptionError, match=r"have of their own: 'refused'; use"):
        require_replaceable_forwards([("layer", layer), ("refused", Activated(2))])


def test_a_training_renews_a_forward_that_an_earlier_one_has_left(monkeypatch):
    """Afterwards a layer gets its own forward back."""
    monkeypatch.setattr(sync_batchnorm, "_all_reduce", lambda tensor, world: 2 * tensor)
    layer, x = shared_before(), torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    earlier, later = SimpleNamespace(left=False), SimpleNamespace(left=False)
    share_statistics(layer, earlier)
    layer(x)
    torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * torch.cat([x, x]).var(0))
    share_statistics(layer, later)
    unshare_statistics(layer, earlier)  # closed after the later training has begun
    assert "forward" in vars(layer)
    unshare_statistics(layer, later)
    assert "forward" not in vars(layer)


def test_all_processes_refuse_a_layer_of_any_stage():
    """They do so before one waits for another, and before a layer is changed."""
    network = nn.Sequential(
        nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Linear(2, 2), Activated(2))
    )
    given = {"batchnorm": "shared", "replicas": 2, "optimizer": sgd}
    setup = Setup(method=FDG(), loss=cross_entropy, **given)
    modules = [network[:2], network[2:]]
    for stage in range(2):
        world, sample = SimpleNamespace(stage=stage, replicas=2), torch.randn(4, 2)
        parts = EngineParts(setup, modules, sample, [], world, None, NetworkNames(network))
        with pytest.raises(OptionError, match=r"have of their own: '2\.1'; use"):
            build_distributed(parts, world)
    assert "forward" not in vars(network[1])


def test_all_processes_refuse_more_fragments_than_weights_of_any_stage():
    meet = "local-sgd:fragments=3"
    setup = Setup(method=FDG(), loss=cross_entropy, optimizer=sgd, meet=meet, replicas=2)
    modules = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)]
    for stage in range(2):
        world = SimpleNamespace(stage=stage, replicas=2)
        parts = EngineParts(setup, modules, torch.randn(4, 2), [], world)
        for build in (partial(build_distributed, world=world), build_replicated):
            with pytest.raises(OptionError, match="3 fragments, and stage 1 has only 2 weight"):
                build(parts)


def test_replicas_in_one_process_have_no_streams():
    given = {"optimizer": sgd, "replicas": 2, "streams": True, "check_every": 2}
    setup = Setup(method=FDG(), loss=cross_entropy, **given)
    parts = EngineParts(setup, [nn.Linear(2, 2)] * 2, torch.randn(4, 2), [], SoloWorld(2))
    with pytest.raises(OptionError, match=r"2 replicas in one process have no streams.*start"):
        build_replicated(parts)


def test_a_sum_that_lacks_a_replica_is_an_error():
    exchange = SimulatedExchange(2, {})
    work = exchange.add_up(torch.ones(2))
    with pytest.raises(HocketError, match="adding: 1 sums lack a replica"):
        exchange.complete([work], "adding")


# Gradients: parameters are gathered in buckets of one dtype each, the last ones first.


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def test_a_bucket_holds_one_dtype():
    mixed = [*parameters(1, 2), *parameters(3, 4, dtype=torch.double), *parameters(5)]
    sizes = [[p.numel() for p in bucket] for bucket in build_buckets(mixed)]
    assert sizes == [[5], [4, 3], [2, 1]]


def summed(replicas, uses):
    """The gradients of each replica, which differentiates the parameters that it uses."""
    open_sums = {}
    syncs = [GradientSync(own, SimulatedExchange(len(uses), open_sums)) for own in replicas]
    for sync, own, used in zip(syncs, replicas, uses, strict=True):
        sum(weight.sum() for weight in own).backward()  # of someone else: it begins no sum
        for weight in own:
            weight.grad = None
        sync.expect()
        sum(own[n].sum() * factor for n, factor in used.items()).backward()
    sums = [sync.take() for sync in syncs]
    for sync, own in zip(syncs, sums, strict=True):
        sync.put(own)
    return [
        [None if p.grad is None else p.grad.tolist() for p in parameters]
        for parameters in replicas
    ]


@pytest.mark.parametrize("bucket_bytes", [4, 2**22], ids=["a bucket each", "one bucket"])
def test_a_weight_that_one_replica_has_used_gets_its_gradient_in_all(bucket_bytes, monkeypatch):
    """Data decide in each replica which weights are used; what none has used stays as it is."""
    monkeypatch.setattr(buckets, "BUCKET_BYTES", bucket_bytes)
    replicas = [parameters(1, 2, 1, 1) for _ in range(2)]
    uses = [{0: 1.0, 1: 3.0}, {0: 0.5, 2: 2.0}]
    wanted = [[1.5], [3.0, 3.0], [2.0], None]
    assert summed(replicas, uses) == [wanted, wanted]
