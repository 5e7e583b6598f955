"""Networks of the papers, each a flat chain of the layers a cutter may separate."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import nn

from hocket.errors import OptionError, listed, unknown
from hocket.typed import hints_of, mistyped
from hocket.zoo.cifar_resnet import (
    resnet8,
    resnet20,
    resnet32,
    resnet44,
    resnet56,
    resnet110,
    resnet1202,
)
from hocket.zoo.dgl import dgl6, dni3
from hocket.zoo.gpt import gpt
from hocket.zoo.mlp import mlp
from hocket.zoo.plans import PLANS, paper_plan
from hocket.zoo.resnet import resnet18, resnet50, resnet101, resnet152
from hocket.zoo.vgg import vgg13_bn, vgg19_bn
from hocket.zoo.wide_resnet import wrn28_10

_BUILDERS: tuple[Callable[..., nn.Sequential], ...] = (
    mlp,
    gpt,
    dgl6,
    dni3,
    resnet8,
    resnet20,
    resnet32,
    resnet44,
    resnet56,
    resnet110,
    resnet1202,
    resnet18,
    wrn28_10,
    resnet50,
    resnet101,
    resnet152,
    vgg13_bn,
    vgg19_bn,
)
NETWORKS: Mapping[str, Callable[..., nn.Sequential]] = MappingProxyType(
    {builder.__name__: builder for builder in _BUILDERS}
)


def build(name: str, **options: object) -> nn.Sequential:
    """The network of this name, a chain of named layers.

    Args:
        name: One of `NETWORKS`.
        options: Keyword arguments of its builder.

    Raises:
        OptionError: There is no such network, or its builder has no such option.

    >>> [name for name, _ in build("mlp", hidden=[32]).named_children()]
    ['hidden0', 'head']
    """
    if name not in NETWORKS:
        raise OptionError(unknown("network", name, NETWORKS))
    valid = list(inspect.signature(NETWORKS[name]).parameters)
    problems = [unknown("option", option, valid) for option in options if option not in valid]
    problems += mistyped(options, hints_of(NETWORKS[name]))
    if problems:
        raise OptionError(listed(f"cannot build network {name!r}", problems))
    return NETWORKS[name](**options)


def fitted(name: str, shape: Sequence[int], classes: int, **options: object) -> nn.Sequential:
    """The network of this name, made for such inputs and outputs.

    Args:
        name: One of `NETWORKS`.
        shape: One input without the batch: (C, H, W), (D,) or (T,).
        classes: Length of the output's last dimension; for tokens, the vocabulary.
        options: Further arguments of its builder; they win.

    Raises:
        OptionError: There is no such network, or its builder has no such option.

    >>> fitted("resnet8", (1, 8, 8), classes=5).stem.conv.in_channels
    1
    """
    fitting: dict[str, object] = {
        "num_classes": classes,
        "in_channels": shape[0],
        "in_features": math.prod(shape),
        "vocab": classes,
        "context": shape[0],
    }
    builder = NETWORKS.get(name)
    taken = inspect.signature(builder).parameters if builder else {}
    return build(name, **({k: v for k, v in fitting.items() if k in taken} | options))


__all__ = [
    "NETWORKS",
    "PLANS",
    "build",
    "dgl6",
    "dni3",
    "fitted",
    "gpt",
    "mlp",
    "paper_plan",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet101",
    "resnet110",
    "resnet152",
    "resnet1202",
    "vgg13_bn",
    "vgg19_bn",
    "wrn28_10",
]
