"""Networks of the papers, each a flat `nn.Sequential` that can be cut between its layers."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import nn

from hocket.zoo.cifar_resnet import resnet8 as resnet8
from hocket.zoo.cifar_resnet import resnet18 as resnet18
from hocket.zoo.cifar_resnet import resnet20 as resnet20
from hocket.zoo.cifar_resnet import resnet32 as resnet32
from hocket.zoo.cifar_resnet import resnet44 as resnet44
from hocket.zoo.cifar_resnet import resnet56 as resnet56
from hocket.zoo.cifar_resnet import resnet110 as resnet110
from hocket.zoo.cifar_resnet import resnet1202 as resnet1202
from hocket.zoo.dgl import dgl6 as dgl6
from hocket.zoo.dgl import dni3 as dni3
from hocket.zoo.gpt import gpt as gpt
from hocket.zoo.mlp import mlp as mlp
from hocket.zoo.plans import PLANS as PLANS
from hocket.zoo.plans import paper_plan as paper_plan
from hocket.zoo.revnet import revnet14 as revnet14
from hocket.zoo.revnet import revnet18 as revnet18
from hocket.zoo.vgg import vgg13_bn as vgg13_bn
from hocket.zoo.vgg import vgg19_bn as vgg19_bn
from hocket.zoo.wide_resnet import wrn28_10 as wrn28_10

_BUILDERS: tuple[Callable[..., nn.Sequential], ...] = (
    mlp, gpt, dgl6, dni3, resnet8, resnet20, resnet32, resnet44, resnet56, resnet110,
    resnet1202, resnet18, revnet14, revnet18, wrn28_10, vgg13_bn, vgg19_bn,
)  # fmt: skip
NETWORKS: Mapping[str, Callable[..., nn.Sequential]] = MappingProxyType(
    {build.__name__: build for build in _BUILDERS}
)


def fitting(build: Callable[..., Any], shape: Sequence[int], classes: int) -> dict[str, object]:
    """Return those arguments of a builder that a data set decides.

    Args:
        build: Function that builds a network.
        shape: Shape of one input without the batch: (C, H, W), (D,) or (T,).
        classes: Number of classes; for tokens, the size of the vocabulary.

    >>> fitting(mlp, (1, 8, 8), classes=5)
    {'num_classes': 5, 'in_features': 64}
    """
    arguments: dict[str, object] = {
        "num_classes": classes,
        "in_channels": shape[0],
        "in_features": math.prod(shape),
        "vocab": classes,
        "context": shape[0],
        "image_size": shape[-1],
    }
    accepted = inspect.signature(build).parameters
    return {name: value for name, value in arguments.items() if name in accepted}
