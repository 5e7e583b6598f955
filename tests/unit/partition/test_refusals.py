"""Cuts that are not possible are refused with all reasons; later failures are reported."""

import itertools
import re

import pytest
import torch
from torch import nn

from contract.small import Network
from hocket import Plan, Trainer, cut
from hocket.errors import CutError, DataError
from unit.partition.networks import Chain, Glued, Layers, Skips, assert_same, skips


def refused(network, sample, plan=("second",)):
    with pytest.raises(CutError) as caught:
        cut(network, stages=Plan(plan), sample=sample)
    return str(caught.value)


class Direct(Layers):
    """Network with a reason against a cut before its second layer."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.register_buffer("early", torch.ones(4))
        self.register_buffer("late", torch.ones(4))

    def forward(self, x):
        if self.kind == "buffers":
            return self.second(self.first(x) * self.early) * self.late
        if self.kind == "buffer":
            return self.second(self.first(x) * self.early) * self.early
        if self.kind == "twice":
            return self.second(self.second(self.first(x)))
        if self.kind == "training":
            return self.second(self.first(x)) if self.training else self.first(x)
        if self.kind == "values":
            x = self.first(x)
            return self.second(-x if x.sum() > 0 else x)
        if self.kind == "view":
            x = self.first(x).relu()
            y, z = x.view(-1), self.second(x.detach())
            x.add_(1)
            return z + y.view(-1, 4) + x
        if self.kind == "two reasons":
            x = self.first(x) * self.early
            return self.second(-x if x.sum() > 0 else x) * self.early
        if self.kind == "unreported":
            x = self.first(x)
            with torch._C.DisableTorchFunction():  # as an extension in C++ may be
                y = x * 2
            return self.second(x) + y
        assert self.kind == "sizes"
        flat = self.first(x).sum(0)
        return self.second(flat).expand(len(x), 4)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("buffer", "buffer 'early' is used on both sides; keep its uses in one stage"),
        ("buffers", "the network itself has buffers that are used on both sides"),
        ("twice", "module 'second' is called 2 times"),
        ("training", "in evaluation it is not called, or elsewhere"),
        ("values", "control flow depends on tensor values computed before it"),
        ("view", "is changed in place after it, and a view of it is used as well"),
        ("two reasons", "'early' is used on both sides(.|\n)*control flow depends on tensor"),
        ("unreported", "a tensor that is used has an unknown origin"),
        ("sizes", "sizes of the inputs matter after it, and nothing that is sent shows them"),
    ],
)
def test_all_reasons_against_a_cut_are_reported(kind, text):
    message = refused(Direct(kind), torch.ones(2, 4))
    assert "not before 'second': " in message
    assert re.search(text, message)
    by_line = kind in ("values", "two reasons", "unreported")
    assert ("test_refusals.py, line " in message) == by_line


def test_a_value_that_is_passed_in_an_attribute_of_a_module_is_refused():
    class Inner(nn.Module):
        def forward(self, x):
            self.kept = x * 2
            return x.detach()

    class Leaky(Network):
        def forward(self, x):
            x = self.inner(self.first(x))
            return self.second(x) + self.inner.kept

    network = Leaky(first=nn.Linear(4, 4), inner=Inner(), second=nn.Linear(4, 4))
    text = refused(network, torch.ones(2, 4))
    assert "a tensor computed inside 'inner' is used without being returned" in text


class Recurrent(Layers):
    """Network that keeps the state of its cell from batch to batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.state = nn.GRU(4, 4), None

    def forward(self, x):
        x, state = self.cell(x, self.state)
        self.state = state.detach()
        return self.second(x)


class Hooked(Chain):
    """Network that reads what hooks of its layers keep."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4) for _ in range(3))
        self.head, self.kept = nn.Linear(8, 3), {}
        for number in (0, 2):
            self.layers[number].register_forward_hook(
                lambda _, inputs, output, number=number: self.kept.update({number: output})
            )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(torch.cat([self.kept[0], self.kept[2]], 1))


class Scaled(Layers):
    """Network that decides by a weight between its modules."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = self.first(x)
        return self.third(self.second(x * 2 if self.scale.item() > 0 else x))


class Counting(Scaled):
    """Module that returns its output and a number of its weights."""

    def forward(self, x):
        return self.first(x), self.scale.item()


class Numbered(Layers):
    """Network whose later layers use a number that a module has returned."""

    def __init__(self):
        super().__init__()
        self.count = Counting()

    def forward(self, x):
        h, number = self.count(x)
        return self.third(self.second(h).view(-1, 2, 2).flatten(1) / number + x)


class Picky(nn.Module):
    """Module that takes only the numbers of the sample."""

    def forward(self, x):
        if not x.any():
            raise ValueError("all numbers are 0")
        return x + 1


def choosing():
    return Chain([nn.Linear(4, 4), Picky(), nn.Linear(4, 2)])


class Cells(Layers):
    """Network with a function that needs numbers."""

    def forward(self, x):
        x = self.first(x)
        counts = torch.repeat_interleave(x.detach().argmax(-1))
        return self.second(x) + counts.sum()


class Mapped(Layers):
    """Network whose forward cannot be followed."""

    def forward(self, x):
        return self.second(torch.vmap(self.first)(x))


class Changing(Layers):
    """Network that does something else without gradients."""

    def forward(self, x):
        x = self.first(x)
        if not torch.is_grad_enabled():
            x = self.second(x)
        return self.third(self.second(x))


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("network", "plan", "sample", "told"),
    [
        (Recurrent, "second", X[None], "a second batch: the stage .* to 'second' is given"),
        (Hooked, "layers.1", X, "the output has no numbers, as of something that is"),
        (Scaled, "second", X, "control flow depends on weights or buffers that are r"),
        (Numbered, "second", X, "returns a number that depends on weights; return"),
        (choosing, "layers.2", X, "module 'layers.1' cannot be left out by a later stage"),
        (Cells, "second", X, r"repeat_interleave \(.*test_refusals.py, line \d+\)"),
        (Mapped, "second", X, "cannot follow the forward of a Mapped, which takes"),
        (Mapped, "second", X[:, :2], "cannot cut a Mapped that does not take the sample"),
        (Changing, "third", X, "in evaluation without gradients the stages fail: "),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_network_of_which_a_stage_would_be_another_is_refused(network, plan, sample, told):
    with pytest.raises(CutError, match=told):
        cut(network(), stages=Plan(plan), sample=sample)


def test_plans_of_other_networks_and_impossible_cuts_are_refused():
    network, sample = skips()
    text = refused(network, sample, plan=("layer1", "head"))
    assert "the plan is for another network" in text
    assert "it cuts before layer 'layer1', and there is no such module" in text
    for cuts, said in (
        (("stem",), "not before 'stem': the network begins with it"),
        (("blocks.1.fc1",), "it begins where 'blocks.1' does; cut before that"),
        (("blocks",), "not before 'blocks': it is not called in the forward"),
        (("head", "blocks.1"), "'head' comes before 'blocks.1' in the plan, but not in the f"),
    ):
        assert said in refused(network, sample, cuts)


@pytest.mark.parametrize(
    ("network", "stages", "where"),
    [
        (Skips(), 2, ""),
        (nn.Sequential(nn.Identity(), nn.Linear(4, 4)), 2, "layer '1' fails: "),
        (nn.Sequential(nn.Identity(), nn.Linear(4, 4)), Plan(("1",)), ""),
    ],
    ids=["a network", "a sequence", "a sequence and a plan"],
)
def test_a_sample_that_the_network_does_not_take_is_refused(network, stages, where):
    with pytest.raises(CutError, match=rf"sample, of shape \(2, 7\): {where}mat1 and .*; pass"):
        cut(network, stages=stages, sample=torch.ones(2, 7))


class Overwrites(Layers):
    """Network that changes a tensor in place which its own backward needs."""

    def forward(self, x):
        x = self.first(x).sigmoid()
        y = self.second(x)
        x.mul_(2)
        return y


@pytest.mark.parametrize(
    "network",
    [Overwrites(), nn.Sequential(Overwrites(), nn.Linear(4, 4))],
    ids=["own", "chain"],
)
def test_a_network_whose_own_backward_fails_is_told_from_one_that_takes_no_sample(network):
    told = r"whose backward fails without a cut as well: .*inplace .*loss\.backward\(\)"
    with pytest.raises(CutError, match=rf"(?s)cannot cut a {type(network).__name__} {told}"):
        cut(network, stages=2, sample=torch.ones(2, 4))


def test_a_sample_that_is_no_tree_of_dense_tensors_is_refused():
    with pytest.raises(DataError, match="the sample has a sparse or nested tensor among its"):
        cut(Glued(), stages=2, sample=torch.eye(4).to_sparse())


def test_more_stages_than_layers_or_less_than_one_are_refused():
    for stages in (0, 30):
        with pytest.raises(CutError, match=f"into {stages} stages: it has 5 layers"):
            cut(Glued(), stages=stages, sample=torch.randn(2, 1, 8, 8))
    with pytest.raises(CutError, match="into 0 stages; give 1 or more"):
        Trainer(Glued(), stages=0, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1))


# Failures that only a forward can show.


class Shorter(Layers):
    """Network that leaves out a layer for large batches."""

    def forward(self, x):
        x = self.first(x)
        return self.third(self.second(x) + x if len(x) < 5 else x)


class Later(Layers):
    """Network that computes the sent value later for large batches."""

    def forward(self, x):
        x = self.first(x)
        x = x.sin() if len(x) < 5 else x
        return self.second(x.relu())


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (Shorter, "never came to its end: the forward took another path"),
        (Later, "did not compute what the next one needs"),
    ],
)
def test_another_path_than_that_of_the_sample_is_an_error(network, told):
    stages = assert_same(network(), Plan("second"), torch.ones(2, 4), torch.ones(4, 4))
    with pytest.raises(CutError, match=told):
        nn.Sequential(*stages)(torch.ones(8, 4))


@pytest.mark.parametrize("reads", [True, False])
def test_other_sizes_than_those_of_the_sample_are_refused_if_the_forward_reads_them(reads):
    class Averaged(Network):
        def forward(self, x):
            length = x.shape[-1] if reads else 6
            return self.second(self.first(x)) / length

    network = Averaged(first=nn.Conv1d(1, 2, 1), second=nn.Conv1d(2, 2, 1))
    longer = torch.ones(2, 1, 9)
    stages = assert_same(network, 2, torch.ones(2, 1, 6), torch.ones(5, 1, 6))
    if reads:
        with pytest.raises(CutError, match=r"received a tensor of shape \(2, 2, 9\), and was"):
            nn.Sequential(*stages)(longer)
    else:
        assert torch.equal(nn.Sequential(*stages)(longer), network(longer))


@pytest.mark.parametrize("first", [True, False])
def test_short_memory_of_a_gpu_is_no_matter_of_the_sample(first):
    """Whether it is short in the first forward or in a later one, of the stages."""

    calls = itertools.count()

    class Large(Layers):
        def forward(self, x):
            if next(calls) >= 6 or first:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.second(self.first(x))

    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        cut(Large(), stages=Plan("second"), sample=torch.ones(2, 4))
