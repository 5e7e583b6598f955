"""Networks of torchvision and timm for `test_library_networks`, with small images."""

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hocket.tree import Tree

RATES = {"p", "drop_prob", "drop_rate"}
"""Attributes with the probability of a dropout."""


@dataclass(frozen=True)
class VisionCase:
    """A network with its inputs.

    Attributes:
        library: Name of the library.
        name: Name of the network there.
        fields: Arguments of the function that builds it.
        size: Height and width of the images.
        argument: Name of the argument of the images.
        refused: Text of the refusal; empty if it is cut.
        uneven: Text of the warning of an uneven cut; empty if there is none.
        rounding: True if a gradient crosses the cut with other strides, which is warned of.
    """

    library: str
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    size: int = 32
    argument: str = "x"
    refused: str = ""
    uneven: str = ""
    rounding: bool = False

    def build(self) -> nn.Module:
        """Build the network in training mode, without dropout."""
        torch.manual_seed(0)
        network: nn.Module
        if self.library == "timm":
            create = importlib.import_module("timm").create_model
            network = create(self.name, num_classes=5, **self.fields)
        else:
            get = importlib.import_module("torchvision.models").get_model
            network = get(self.name, weights=None, num_classes=5, **self.fields)
        for module in network.modules():
            for rate in RATES & vars(module).keys():
                setattr(module, rate, 0.0)
        return network.train()

    def make_inputs(self) -> Tree:
        """Make a batch of two images."""
        return {self.argument: torch.randn(2, 3, self.size, self.size)}


def import_error(library: str) -> str:
    """Return the reason why a library cannot be imported; empty if it can.

    A torchvision without the operators of the PyTorch beside it raises a RuntimeError.
    """
    try:
        importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        return f"{library} cannot be imported: {error}"
    return ""


FOUR = {"img_size": 32, "depth": 4}
VISION_CASES = [
    *(
        VisionCase("torchvision", name, **settings)
        for name, settings in {
            "resnet18": {},
            "resnext50_32x4d": {},
            "densenet121": {},
            "googlenet": {"size": 64, "fields": {"aux_logits": False, "init_weights": False}},
            "mobilenet_v2": {},
            "mobilenet_v3_small": {},
            "shufflenet_v2_x0_5": {},
            "squeezenet1_1": {},
            "mnasnet0_5": {},
            "efficientnet_b0": {},
            "regnet_y_400mf": {},
            "convnext_tiny": {},
            "swin_t": {},
            "lraspp_mobilenet_v3_large": {
                "fields": {"weights_backbone": None},
                "argument": "input",
            },
        }.items()
    ),
    *(
        VisionCase("timm", name, **settings)
        for name, settings in {
            "resnet10t": {},
            "vit_tiny_patch16_224": {"fields": FOUR},
            "deit3_small_patch16_224": {"fields": FOUR},
            "beit_base_patch16_224": {"fields": FOUR},
            "cait_xxs24_224": {"fields": FOUR, "rounding": True},
            "eva02_tiny_patch14_224": {
                "fields": {"img_size": 28, "depth": 4},
                "size": 28,
                "refused": "buffer 'rope.pos_embed' is shared by stages 0, 1",
            },
            "mixer_s32_224": {"fields": {"img_size": 32}},
            "resmlp_12_224": {"fields": {"img_size": 32}},
            "xcit_nano_12_p16_224": {"rounding": True},
            "poolformer_s12": {},
            "convnext_atto": {},
            "inception_next_atto": {},
            "edgenext_xx_small": {},
            "efficientnet_lite0": {},
            "mobilenetv4_conv_small": {},
            "ghostnet_050": {},
            "regnetx_002": {},
            "dla34": {},
            "fastvit_t8": {"size": 64},
            "pit_ti_224": {"size": 64, "fields": {"img_size": 64}},
            "coatnet_nano_rw_224": {
                "size": 64,
                "fields": {"img_size": 64},
                "rounding": True,
            },
        }.items()
    ),
]
