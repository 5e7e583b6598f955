"""A gradient is clipped stage by stage, with the bits of PyTorch's own clipping."""

import re

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from contract.small import copied, data, different, mlp, sgd, train
from hocket import Trainer, cross_entropy
from hocket.errors import OptionError
from hocket.methods import ADL, BP
from hocket.stage.update.clipping import Clipping, as_clipping

BATCHES = data(mlp, 6)


def clipped_loop(modules, accumulate, clip, each):
    """A plain loop that clips the gradient of every update, or that of every batch."""
    network = nn.Sequential(*modules)
    optimizers = [sgd(module.parameters()) for module in modules]
    weights = list(network.parameters())
    sums = [torch.zeros_like(p) for p in weights]
    for number, (x, y) in enumerate(BATCHES, 1):
        cross_entropy(network(x), y).backward()
        if each == "batch":
            for module in modules:
                clip_grad_norm_(module.parameters(), clip)
        for total, p in zip(sums, weights, strict=True):
            total.add_(p.grad)
            p.grad = None
        if number % accumulate == 0:
            for total, p in zip(sums, weights, strict=True):
                p.grad = total / accumulate
                total.zero_()
            for module, optimizer in zip(modules, optimizers, strict=True):
                if each == "update":
                    clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("each", ["update", "batch"])
@pytest.mark.parametrize("norm", [0.1, 1e6])
def test_it_is_what_a_plain_loop_does_to_each_stage(norm, each, accumulate):
    """Bit-equal; the larger norm is never reached."""
    modules = mlp(2)
    plain = copied(modules)
    clip = norm if each == "update" else f"batch:{norm}"
    train(BP(accumulate=accumulate), modules, BATCHES, clip=clip)
    clipped_loop(plain, accumulate, norm, each)
    pairs = zip(modules, plain, strict=True)
    assert [d for a, b in pairs for d in different(a.parameters(), b.parameters())] == []


@pytest.mark.parametrize("clip", [1e-3, "batch:1e-3"])
def test_the_norm_that_is_reported_is_the_one_before(clip):
    def norms(**options):
        events = train(ADL(accumulate=6), mlp(3), BATCHES, **options).events
        return [e.report.gradient_norm for e in events if e.action.kind == "B"]

    before = norms()
    assert norms(clip=clip) == before  # the only update comes after all of them
    assert min(before) > 1e-3


def test_where_there_is_no_gradient_there_is_nothing_to_clip_and_nothing_waits():
    """A tensor without numbers refuses to be read."""
    gradients = [torch.ones(3, device="meta"), None]
    scaled, missing = Clipping(1.0).clipped(gradients, "update")
    assert (scaled.shape, scaled.device.type, missing) == ((3,), "meta", None)
    for none in ([], [None], [None, None]):
        assert Clipping(1.0).clipped(none, "update") == none
        assert Clipping(1.0, "batch").clipped(none, "batch") == none


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, torch.double, torch.complex64]
)
def test_every_type_keeps_its_own(dtype):
    gradients = [torch.full((2,), 3.0, dtype=dtype), torch.tensor(4.0, dtype=dtype)]
    scaled = Clipping(1.0, "batch").clipped(gradients, "batch")
    assert [g.dtype for g in scaled] == [dtype] * 2
    norm = torch.stack([g.norm().to(torch.double) ** 2 for g in scaled]).sum().sqrt()
    assert norm.item() == pytest.approx(1.0, rel=1e-2)
    assert gradients[1].item() == 4.0
    # Also one number beside wider ones.
    wider = torch.ones(4, dtype=torch.promote_types(dtype, torch.float64))
    clipped = Clipping(0.1).clipped([torch.tensor(3.0, dtype=dtype), wider], "update")
    assert [gradient.dtype for gradient in clipped] == [dtype, wider.dtype]


def test_sparse_gradients_are_clipped():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    (scaled,) = Clipping(1.0).clipped([embedding.weight.grad], "update")
    assert scaled.is_sparse
    assert scaled.to_dense().norm().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, Clipping()),
        ("none", Clipping()),
        (2, Clipping(2.0)),
        ("2", Clipping(2.0)),
        ("batch:0.5", Clipping(0.5, "batch")),
    ],
)
def test_it_is_read_from_numbers_and_text(value, wanted):
    assert as_clipping(value) == wanted
    assert as_clipping(str(wanted)) == wanted


@pytest.mark.parametrize("value", ["network:1.0", "much", "", "nan", float("inf"), True, []])
def test_what_is_no_norm_of_a_stage_is_refused(value):
    said = f"clip is {value!r}; use a norm, such as 1.0 for the gradient of each update"
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        Trainer(mlp(2), optimizer=sgd, clip=value)
    assert "every stage would have to wait in each update" in str(caught.value)
    for low in (0, -1.0, "batch:0"):
        with pytest.raises(OptionError, match="use a norm above 0, or none"):
            as_clipping(low)
