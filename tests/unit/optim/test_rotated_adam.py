"""Adam in rotated bases: its reference, its laws, and its place in a training."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from contract.small import far
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import FDG
from hocket.optim.rotated_adam import RotatedAdam, rotated_adam
from hocket.remedies import Predict
from reference import rotated_adam as reference
from unit.stage.small_gpt import gpt, texts

# A first gradient is diagonal in its own bases, but for rounding: eps has to be far above it.
ADAM = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}
OPTIONS = ADAM | {"weight_decay": 0.0, "refresh": 4}


def gradients(shape, count=13, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=make).double() for _ in range(count)]


def walk(build, start, path):
    """Return the weight after each step with the gradients of a path."""
    weight = nn.Parameter(start.clone())
    optimizer, seen = build([weight]), []
    for gradient in path:
        weight.grad = gradient.clone()
        optimizer.step()
        seen.append(weight.detach().clone())
    return seen


@pytest.mark.parametrize("refresh", [1, 4, 50])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (2, 3)])
def test_steps_are_those_of_the_reference(shape, refresh):
    """Close in float64; where more than one dimension has no gradient, bases are not unique."""
    start, *path = gradients(shape)
    options = OPTIONS | {"refresh": refresh}
    seen = walk(lambda params: RotatedAdam(params, **options), start, path)
    assert not far(seen, reference.path(start, path, **ADAM, refresh=refresh))


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 2)])
def test_without_a_rotation_it_is_adamw(shape):
    start, *path = gradients(shape)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.3}
    turned = [{"params": [], "rotated": True}]

    def build(params):
        return RotatedAdam([*turned, {"params": params, "rotated": False}], **options)

    wanted = walk(lambda params: AdamW(params, **options), start, path)
    assert not far(walk(build, start, path), wanted)


def test_a_rotation_of_the_weights_rotates_their_path():
    """Of which Adam's path, coordinate by coordinate, knows nothing."""
    start, *path = gradients((4, 4))
    left, right = (torch.linalg.qr(each).Q for each in gradients((4, 4), 2, seed=1))

    def rotated(tensors):
        return [left @ each @ right for each in tensors]

    for kind, same in ((RotatedAdam, True), (AdamW, False)):
        build = partial(kind, **ADAM)
        turned = walk(build, rotated([start])[0], rotated(path))
        assert (not far(rotated(walk(build, start, path)), turned)) == same


def test_predictions_need_the_last_change():
    network, method = gpt(), FDG().with_remedies(Predict())
    trainer = Trainer(network, stages=2, method=method, optimizer=rotated_adam(network))
    with pytest.raises(OptionError, match=r"is another \(RotatedAdam\).*direction=last"):
        trainer.prepare(texts(1)[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_of_few_digits_can_be_rotated(dtype):
    start, *path = [each.to(dtype) for each in gradients((3, 4))]
    seen = walk(lambda params: RotatedAdam(params, **OPTIONS), start, path)
    assert {each.dtype for each in seen} == {dtype}
    assert all(each.isfinite().all() for each in seen)


@pytest.mark.parametrize(
    ("weight", "options", "told"),
    [
        (torch.zeros(3), {}, r"a weight of shape \(3,\) is no matrix"),
        (torch.zeros(2, 2, dtype=torch.cfloat), {}, "a weight is complex"),
        (torch.zeros(2, 2), {"refresh": 0}, "refresh is 0"),
        (torch.zeros(2, 2), {"refresh": 2.5}, "refresh is 2.5"),
        (torch.zeros(2, 2), {"betas": (1.0, 0.9)}, r"two betas in \[0, 1\)"),
        (torch.zeros(2, 2), {"betas": (0.9,)}, r"two betas in \[0, 1\)"),
        (torch.zeros(2, 2), {"lr": -1.0}, "lr, eps and weight_decay are at least 0"),
        (torch.zeros(2, 2), {"eps": math.nan}, "lr, eps and weight_decay are at least 0"),
    ],
)
def test_what_cannot_be_rotated_is_refused(weight, options, told):
    with pytest.raises(ValueError, match=told):
        RotatedAdam([nn.Parameter(weight)], **options)
