"""Batches unlike the sample: stages compute what the network does, or refuse them."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from contract.small import Network
from hocket import Plan, cut
from hocket.errors import CutError
from unit.partition.networks import Layers, assert_same


class Scaled(Layers):
    """Network with an input that is used behind its first layer, and is no tensor."""

    def forward(self, x, scale=1.0, shift=None, options=None):
        x = self.second(self.first(x).relu()) * scale
        if shift is not None:
            x = x + shift
        return self.third(x)


AT_SECOND = Plan(("second",))
X = torch.randn(6, 4)


@pytest.mark.parametrize(
    "others",
    [
        {"scale": 2.0, "shift": None},
        {"options": {"deep": "yes"}},
        {"options": SimpleNamespace(deep=True)},
        {"shift": X},
    ],
)
def test_inputs_that_stay_as_they_are_need_not_be_tensors(others):
    """Their keys may come in any order."""
    assert_same(Scaled(), 2, {"x": X, **others}, {**others, "x": torch.randn(6, 4)})


@pytest.mark.parametrize(
    ("sample", "batch", "told"),
    [
        ({"scale": 2.0}, {"scale": 3.0}, "is 3.0, and was 2.0 in the sample"),
        ({"scale": 2.0}, {"scale": 2}, "is 2, and was 2.0 in the sample"),
        ({"shift": None}, {"shift": X}, "is a tensor, and was None in the sample"),
        ({"shift": X}, {"shift": None}, "is None, and was a tensor in the sample"),
        ({"scale": 2.0}, {}, "{'x': 'a tensor'}, and were {'x': 'a tensor', 'scale'"),
        ({}, {"scale": 2.0}, "'scale': '2.0'}, and were {'x': 'a tensor'} in the sample"),
        ({"shift": X}, {"shift": [X]}, "'shift': ['a tensor']}, and were"),
        ({"options": object()}, {"options": object()}, "is an object of object, and was"),
    ],
)
def test_inputs_without_tensors_that_change_are_refused(sample, batch, told):
    stages = cut(Scaled(), stages=2, sample={"x": X, **sample})
    with pytest.raises(CutError, match=re.escape(told)):
        stages[0]({"x": X, **batch})


class Flattened(Layers):
    """Network that puts batch and time into one dimension before it is cut."""

    def forward(self, x):
        count, times, width = x.shape
        h = self.second(self.first(x).reshape(count * times, width).relu())
        return self.third(h.view(count, times, width).mean(1))


def test_a_batch_of_another_length_is_not_taken_for_one_of_another_size():
    sample, batch = torch.randn(2, 4, 4), torch.randn(5, 4, 4)
    stages = assert_same(Flattened(), AT_SECOND, sample, batch)
    for shape in ((4, 8, 4), (4, 6, 4), (3, 2, 4)):
        with pytest.raises(CutError, match="sizes of the inputs matter in what the network"):
            nn.Sequential(*stages)(torch.randn(shape))


class Counted(Layers):
    """Network whose own forward assigns one of its buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        x = self.first(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.third(self.second(x).relu() - self.mean)


@pytest.mark.parametrize("training", [True, False])
def test_a_buffer_that_the_forward_assigns_keeps_its_numbers(training):
    network, batch = Counted().train(training), torch.randn(6, 4)
    stages = nn.Sequential(*cut(network, stages=2, sample=batch)).train()
    network.train()
    before = network.mean.clone()
    output = stages(batch)
    assert not network.mean.is_meta
    after, network.mean = network.mean, before
    assert torch.equal(output, network(batch))
    assert torch.equal(after, network.mean)


class Scheduled(Layers):
    """Network that does not use the first of its buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("betas", torch.rand(4))
        self.register_buffer("alphas", torch.rand(4))

    def forward(self, x):
        return self.third(self.second(self.first(x) * self.alphas))


def test_an_unused_buffer_is_with_the_used_ones_of_its_module():
    assert_same(Scheduled(), AT_SECOND, torch.randn(6, 4), torch.randn(5, 4))


class OnlyLooks(Layers):
    """Network that looks at a dropout, and never calls it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        h = F.dropout(self.first(x), self.drop.p, self.drop.training)
        return self.third(self.second(h))


class OneDropout(OnlyLooks):
    """Network that uses one dropout several times."""

    def forward(self, x):
        return self.third(self.drop(self.second(self.drop(self.first(x)).relu())))


@pytest.mark.parametrize("network", [OnlyLooks(), OneDropout()], ids=["looked at", "called"])
def test_a_module_without_weights_is_in_each_stage_that_uses_it_and_has_its_mode(network):
    batch = torch.randn(6, 4)
    stages = nn.Sequential(*cut(network, stages=2, sample=batch)).eval()
    assert all("drop" in dict(stage.named_children()) for stage in stages)
    assert not network.drop.training
    assert torch.equal(stages(batch), network.eval()(batch))


@pytest.mark.parametrize("layers", [("c",), ("b", "c")])
def test_a_text_of_another_length_may_not_take_another_number_of_steps(layers):
    class Steps(Network):
        def forward(self, ids):
            x = self.b(self.a(ids))
            for t in range(ids.shape[1]):
                x = x + ids[:, t].view(-1, 1, 1)
            return self.c(x)

    network = Steps(a=nn.Embedding(9, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4))
    ids = torch.arange(6).view(2, 3)
    stages = assert_same(network, Plan(layers), ids, ids + 1)
    with pytest.raises(CutError, match=r"another path than on the sample"):
        nn.Sequential(*stages)(torch.arange(8).view(2, 4))


class Typed(Layers):
    """Network with a constant of the type that its first layer gives, or functions."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        h, weight = self.first(x), self.second.weight
        if self.by == "functions":
            h = F.linear(F.linear(x, weight), weight)
        scale = torch.full((4,), 1.2, dtype=h.dtype)
        return self.third(self.second(h).relu()) * scale


@pytest.mark.parametrize("by", ["layer", "functions"])
def test_types_that_autocast_decides_are_those_of_the_network(by):
    network, batch = Typed(by), torch.randn(6, 4)
    stages = assert_same(network, Plan("third"), batch, batch)
    with torch.autocast("cpu", torch.bfloat16):
        output = nn.Sequential(*stages)(batch)
        assert output.dtype == torch.bfloat16
        assert torch.equal(output, network(batch))


class Cast(nn.Module):
    """Module that is told the type of its output."""

    def forward(self, x, dtype):
        return x.to(dtype)


def test_a_type_that_a_module_is_told_is_that_of_now():
    class Told(Network):
        dtype = torch.float32

        def forward(self, x):
            h = self.cast(self.first(x), self.dtype)
            return self.last(x) * torch.ones(4, dtype=h.dtype)

    network, batch = Told(first=nn.Linear(4, 4), cast=Cast(), last=nn.Linear(4, 4)), X
    stages = assert_same(network, Plan("last"), batch, batch)
    network.dtype = torch.float64
    assert nn.Sequential(*stages)(batch).dtype == network(batch).dtype == torch.float64


class Masked(Layers):
    """Network that decides by a mask, and reads a size of another input behind a cut."""

    def forward(self, x, mask):
        h = self.first(x)
        if mask.any():
            h = h * mask[:, None]
        return self.third(self.second(h) / len(x))


def test_sizes_and_rows_are_those_of_the_batch_where_stages_repeat_decisions():
    sample, *batches = ((torch.randn(n, 4), torch.arange(n) < 2) for n in (2, 2, 6))
    assert_same(Masked(), AT_SECOND, sample, *batches)


class Recurrent(Network):
    """A network that takes both states of its LSTM."""

    def forward(self, inputs, hidden, cell):
        return self.read(self.lstm(self.embed(inputs), (hidden, cell))[0])


def test_one_tensor_may_be_given_for_two_inputs():
    zeros = torch.zeros(1, 2, 4)
    sample = torch.randn(5, 2, 4), zeros, zeros
    network = Recurrent(embed=nn.Linear(4, 4), lstm=nn.LSTM(4, 4), read=nn.Linear(4, 3))
    batch = torch.randn(5, 2, 4), torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    assert_same(network, Plan(("lstm",)), sample, batch)


def test_a_batch_has_the_size_of_the_first_tensor_with_dimensions():
    class Scaled(Layers):
        def forward(self, scale, x):
            h = self.first(x).view(len(x), 2, 2).flatten(1)
            return self.third(self.second(h * scale))

    sample, *batches = ((torch.tensor(2.0), torch.randn(size, 4)) for size in (3, 3, 5))
    assert_same(Scaled(), AT_SECOND, sample, *batches)
