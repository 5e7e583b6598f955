"""Each stage repeats decisions about discrete inputs; others stay inside their modules."""

import pytest
import torch
from torch import nn

from contract.small import Network
from hocket import Plan, cut
from hocket.errors import CutError
from unit.partition.networks import Chain, assert_same


class MaskFactory(nn.Module):
    """Module that makes a mask of floats, or none if nothing is masked."""

    def forward(self, mask):
        if mask is None or mask.all():
            return None
        mask = mask.clone()
        mask[:, 0] = 1
        return (1.0 - mask[:, None].float()) * -100.0


class Attention(Network):
    """Attention that adds a mask if there is one."""

    def forward(self, x, bias):
        scores = x @ x.transpose(1, 2)
        if bias is not None:
            scores = scores + bias
        return self.layer(scores.softmax(-1) @ x)


class Masked(nn.Module):
    """Network whose mask is left out if nothing is masked, as in transformers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.factory = MaskFactory()
        self.layers = nn.ModuleList(Attention(layer=nn.Linear(4, 4)) for _ in range(4))
        self.head = nn.Linear(4, 2)

    def forward(self, ids, mask=None):
        x = self.embed(ids) * ids.shape[1]
        bias = self.factory(mask)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x.mean(1))


def batch(length, padded):
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, 2:] = 1 - padded
    return {"ids": torch.randint(0, 9, (3, length)), "mask": mask}


class Positioned(Masked):
    """Network with learned positions, whose number is the length of the text."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(9, 4)

    def forward(self, ids):
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, None)
        return self.head(x.mean(1)) / ids.shape[1]


@pytest.mark.parametrize("padded", [0, 1])
def test_each_stage_decides_from_the_discrete_inputs_of_each_batch(padded):
    """Texts may have any length where sizes are read."""
    plan, sample = Plan(("layers.1", "layers.3")), batch(5, padded=padded)
    others = [batch(*each) for each in ((5, 0), (5, 1), (7, 1), (3, 0))]
    assert_same(Masked(), plan, sample, *others)
    texts = (batch(length, 0)["ids"][: length - 1 or 1] for length in (5, 7, 1, 3))
    assert_same(Positioned(), plan, sample["ids"], *texts)


class Sizeless(Masked):
    """The network without a function that reads a size."""

    def forward(self, ids):
        return self.head(self.layers[0](self.embed(ids), None).mean(1))


def test_only_discrete_inputs_are_sent_along_and_only_if_something_needs_them():
    sample = batch(5, padded=1)
    (before, _) = cut(Masked(), stages=Plan(("layers.2",)), sample=sample)
    ids, mask, *activations = before(sample)
    assert torch.equal(ids, sample["ids"])
    assert torch.equal(mask, sample["mask"])
    assert all(value.is_floating_point() for value in activations)
    (before, _) = cut(Sizeless(), stages=Plan(("layers.0",)), sample={"ids": sample["ids"]})
    assert all(value.is_floating_point() for value in before({"ids": sample["ids"]}))


@pytest.mark.parametrize("padded", [0, 1])
def test_an_output_whose_structure_depends_on_floats_is_refused(padded):
    sample = batch(5, padded=padded)
    sample["mask"] = sample["mask"].float()
    with pytest.raises(CutError, match=r"'factory' cannot be left out .* shapes depend"):
        cut(Masked(), stages=Plan(("layers.2",)), sample=sample)


class Routed(nn.Module):
    """Mixture of experts that selects its inputs by numbers."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.drawn = 0

    def forward(self, x):
        self.drawn = x
        chosen = self.router(x).argmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                (rows,) = torch.where(chosen == number)
                y.index_add_(0, rows, expert(x[rows]))
        return x + y


def test_decisions_inside_a_module_that_is_left_out_concern_no_other_stage():
    network = Chain(Routed() for _ in range(4))
    sample, *batches = (torch.randn(size, 4) for size in (6, 6, 1, 9))
    assert_same(network, Plan(("layers.2",)), sample, *batches)
    # Leaving a module out does not change what it keeps.
    assert not network.layers[0].drawn.is_meta
    with pytest.raises(CutError, match="control flow depends on tensor values computed before"):
        cut(network, stages=Plan(("layers.2.experts.1",)), sample=sample)
