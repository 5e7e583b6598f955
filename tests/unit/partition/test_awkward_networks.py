"""Networks that keep things, decide by numbers or are scripted are cut, or refused in words."""

import copy

import pytest
import torch
from torch import nn

from contract.small import data, far, sgd, skips, stepped
from hocket import Plan, Trainer, cut
from hocket.errors import CutError
from hocket.partition.cut_points import find_cut_points
from unit.partition.networks import Chain, Layers, assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")
X = torch.eye(4)


class Annealed(Layers):
    """A network that divides by something which it changes in each forward."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.steps, self.seen = kind, 0, []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        self.seen.append(1)
        self.count += 1
        divisor = {"number": self.steps, "list": len(self.seen), "buffer": self.count, "": 1}
        return self.second(self.first(x) / divisor[self.kind])


@pytest.mark.parametrize(
    ("kind", "named"), [("number", " in the attribute 'steps',"), ("list", ",")]
)
def test_a_count_that_each_stage_would_repeat_is_refused(kind, named):
    with pytest.raises(CutError, match=f"from batch to batch.*{named} and each stage repeats"):
        cut(Annealed(kind), stages=Plan("second"), sample=X)


@pytest.mark.parametrize("kind", ["buffer", ""])
def test_a_count_in_a_buffer_or_that_nothing_depends_on_is_no_obstacle(kind):
    network = Annealed(kind)
    stages = cut(network, stages=Plan("second"), sample=X)
    expected = copy.deepcopy(network)
    for _ in range(3):
        assert torch.equal(stages[1](stages[0](X)), expected(X))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_trainer_begins_with_attributes_and_generators_as_they_were(stages):
    class Noisy(Annealed):
        def __init__(self, kind):
            super().__init__(kind)
            self.generator = torch.Generator().manual_seed(3)

        def forward(self, x):
            return super().forward(x + torch.rand(x.shape, generator=self.generator))

    network = Noisy("number" if stages == 1 else "")
    state = network.generator.get_state()
    with Trainer(network, stages=stages, method="bp", optimizer=sgd) as trainer:
        trainer.prepare(X)
        assert (network.steps, network.seen) == (0, [])
        assert torch.equal(network.generator.get_state(), state)


def test_decisions_by_buffers_are_made_inside_modules():
    class Scheduled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.tensor(0))
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            self.n += 1
            return self.layer(x) * (1 - min(0.5, self.n.item() * 0.1))

    network = nn.Sequential(*(Scheduled() for _ in range(4)))
    for stages in (2, 3, 4):
        assert (
            len(cut(nn.Sequential(network, nn.Identity()), stages=stages, sample=X)) == stages
        )
    with pytest.raises(CutError, match=r"not before '0\.1\.layer': .*"):
        cut(nn.Sequential(network), stages=Plan("0.1.layer"), sample=X)


def test_a_scripted_network_is_refused_and_scripted_layers_are_not():
    layers = nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4)
    assert len(cut(nn.Sequential(*layers), stages=2, sample=X)) == 2
    trainer = Trainer(nn.Sequential(*layers), method="bp", optimizer=sgd)
    assert trainer.step(X, torch.zeros(len(X)).long()) > 0
    with pytest.raises(CutError, match=r"was compiled by torch\.jit, which hides the calls"):
        cut(torch.jit.script(nn.Sequential(nn.Linear(4, 4))), stages=2, sample=X)
    with pytest.raises(CutError, match=r"compiled by torch\.jit"):
        Trainer(torch.jit.script(nn.Linear(4, 4)), stages=1, method="bp", optimizer=sgd)


@pytest.mark.parametrize("ahead", ["layers.2", "2"])
def test_a_stage_may_begin_with_a_layer_that_works_in_place(ahead):
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 4)
    network = nn.Sequential(*layers) if ahead == "2" else Chain(layers)
    assert len(cut(network, stages=Plan(ahead), sample=X)) == 2


class Summed(Layers):
    """Network that adds something of each layer to a constant that it begins with."""

    def forward(self, x):
        total = torch.zeros(())
        x = self.first(x)
        for layer in (self.second, self.third):
            x = layer(x)
            total += x.square().mean()
        return x, total


def test_a_constant_may_be_added_to_behind_a_cut():
    graph = find_cut_points(Summed(), torch.randn(2, 4))
    assert [point.name for point in graph.cut_points] == ["second", "third"]
    assert_same(Summed(), Plan(("second", "third")), torch.randn(2, 4), torch.randn(3, 4))


class Scripting(Layers):
    """Network with a module, scripted unless told otherwise, between others."""

    def __init__(self, *inner, scripted=True):
        super().__init__()
        module = nn.Sequential(*(inner or (nn.Linear(4, 4), nn.ReLU())))
        self.scripted = torch.jit.script(module) if scripted else module

    def forward(self, x):
        return self.third(self.second(self.scripted(self.first(x)) + 1))


class Twice(Scripting):
    """One that calls its scripted module a second time."""

    def forward(self, x):
        return self.third(self.scripted(self.second(self.scripted(self.first(x)))))


def train(network, stages):
    """Train a network for some steps in float64, and return all of its weights and buffers."""
    batches = data(skips, 4, size=6)
    parts = cut(network.double(), stages=stages, sample=batches[0][0])
    with Trainer(parts, method="bp", optimizer=sgd) as trainer:
        stepped(trainer, batches)
    return network.state_dict().values()


@pytest.mark.parametrize("stages", [3, 4, Plan("second"), Plan("third")])
def test_a_scripted_module_is_trained_as_one_that_is_not(stages):
    inner = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    plain = Scripting(*inner, scripted=False)
    scripted = Scripting(*copy.deepcopy(inner))
    scripted.load_state_dict(plain.state_dict())
    assert not far(train(scripted, stages), train(plain, 1))


@pytest.mark.parametrize("stages", [3, Plan("scripted")])
def test_a_scripted_module_may_share_a_weight_with_a_layer_ahead(stages):
    def tie(scripted):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        network = Scripting(layer, nn.Tanh(), scripted=scripted)
        network.first.weight = layer.weight
        return network

    assert not far(train(tie(scripted=True), stages), train(tie(scripted=False), 1))


def test_a_scripted_module_that_is_used_twice_is_in_one_stage():
    sample = torch.randn(5, 4)
    with pytest.raises(CutError, match="module 'scripted' is used 2 times; keep its uses in"):
        cut(Twice(), stages=Plan(("second",)), sample=sample)
    stages = cut(Twice(), stages=Plan("third"), sample=sample)
    names = [{name for name, _ in stage.named_children()} for stage in stages]
    assert names == [{"first", "scripted", "second"}, {"third"}]
