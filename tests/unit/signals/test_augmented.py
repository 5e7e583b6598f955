"""Heads with layers like later ones of the network, as in AugLocal."""

import pytest
import torch
from torch import nn

from contract.small import CLASSES, SHAPES, data, far, mlp, sgd, stepped, tensors_of
from hocket import DGL, Trainer, cross_entropy, zoo
from hocket.errors import OptionError
from hocket.methods import parse_method
from hocket.signals import Local
from hocket.signals.heads import build_head
from hocket.signals.signal import StageShapes
from reference import auglocal, dgl

CHANNELS, SIDES = [4, 4, 6, 6, 8, 8], [8, 8, 4, 4, 2, 2]


def convolutions():
    """Return a layer of its own for each stage, and the last layer after them."""
    torch.manual_seed(0)
    inputs = [(3, 8), *zip(CHANNELS, SIDES, strict=True)]
    layers = [
        nn.Sequential(nn.Conv2d(c, to, 3, side // to_side, 1), nn.ReLU())
        for (c, side), to, to_side in zip(inputs, CHANNELS, SIDES, strict=False)
    ]
    layers[-1] = nn.Sequential(*layers[-1], nn.Flatten(), nn.Linear(4 * CHANNELS[-1], CLASSES))
    return [layer.double() for layer in layers]


SHAPES[convolutions] = (3, 8, 8)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 9])
def test_heads_are_those_of_their_reference(depth):
    """A training of six stages is that of the plain loop with these heads, in float64."""
    modules, alone = convolutions(), convolutions()
    trainer = Trainer(modules, method=DGL(head="aug", depth=depth), optimizer=sgd)
    trainer.prepare(data(convolutions, 1)[0][0])
    heads = []
    for number, stage in enumerate(trainer.stages[:-1], start=1):
        d = auglocal.depth(number, 5, depth)
        head = auglocal.head(CHANNELS, SIDES, number, d, CLASSES).double()
        values = stage.signal_network.state_dict().values()
        head.load_state_dict(dict(zip(head.state_dict(), values, strict=True)))
        heads.append(head)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
    losses = dgl.train(alone, data(convolutions, 5), loss=cross_entropy, heads=heads, **options)
    stepped(trainer, data(convolutions, 5))
    trainer.finish()
    assert len(losses) == 5
    assert not far(tensors_of(*modules), tensors_of(*alone))
    for stage, head in zip(trainer.stages, heads, strict=False):
        assert not far(stage.signal_network.state_dict().values(), head.state_dict().values())


def test_heads_of_a_resnet_narrow_and_widen_as_it_does():
    trainer = Trainer(zoo.resnet20(), stages=4, method="dgl:head=aug,depth=3", optimizer=sgd)
    trainer.prepare(torch.zeros(2, 3, 32, 32))
    heads = [stage.signal_network for stage in trainer.stages[:-1]]
    shapes = []
    for head in heads:
        found = [m for m in head.modules() if isinstance(m, nn.Conv2d)]
        shapes.append([(m.in_channels, m.out_channels, m.stride[0]) for m in found])
    assert [len(found) for found in shapes] == [3, 2, 1]
    assert all(found[-1][1] == 64 for found in shapes)  # the channels of the last block
    first = shapes[0]
    assert torch.tensor([stride for _, _, stride in first]).prod() == 64 // first[0][0]
    assert heads[0](torch.zeros(2, 16, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("text", ["dgl:head=aug", "dgl-async:head=aug", "dgl:head=aug,depth=0"])
def test_heads_train_on_vectors(text):
    modules = mlp(3)
    trainer = Trainer(modules, method=parse_method(text), optimizer=sgd)
    trainer.prepare(data(mlp, 1)[0][0])
    before = [stage.signal_network[1][-1].weight.clone() for stage in trainer.stages[:-1]]
    stepped(trainer, data(mlp, 6))
    trainer.finish()
    for old, stage in zip(before, trainer.stages, strict=False):
        assert not torch.equal(old, stage.signal_network[1][-1].weight)


@pytest.mark.parametrize(
    ("shape", "output_shape", "later"),
    [
        ((4, 8, 8), (3,), ((6, 4, 4), (9,), (8, 2, 2))),
        ((4, 7, 9), (), ((6, 4, 3),)),
        ((6,), (3,), ((5,), (7, 6), (8,))),
        ((7, 6), (3,), ((7, 5), (4,))),
        ((7, 6), (7, 3), ((7, 5), (7, 8))),
    ],
)
@pytest.mark.parametrize("width", [1.0, 0.1])
def test_a_head_predicts_in_the_shape_of_the_networks_output(shape, output_shape, later, width):
    """From layers with an output of as many dimensions as the stage's."""
    signal = Local("aug", width)
    head = signal.build_network(StageShapes(shape, output_shape, later))
    assert signal.predict(head, torch.randn(5, *shape)).shape == (5, *output_shape)
    alike = [each for each in later if len(each) == len(shape)]
    layers = [m for m in head.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == len(alike) + 1
    features = alike[-1][0] if len(shape) == 3 else alike[-1][-1]
    assert layers[-1].in_features == max(1, round(width * features))


def test_a_stage_without_a_later_layer_is_refused():
    with pytest.raises(OptionError, match=r"of shape \(4, 8, 8\) there is none but the last"):
        build_head("aug", (4, 8, 8), 3, depth=1)
    stages = [convolutions()[0], nn.Sequential(nn.Flatten(), nn.Linear(256, 3)).double()]
    with pytest.raises(OptionError, match="cut earlier or into more stages"):
        Trainer(stages, method="dgl:head=aug", optimizer=sgd).prepare(
            data(convolutions, 1)[0][0]
        )
    assert build_head("aug", (4, 8, 8), 3, depth=0)
