"""Networks of torchvision and timm for `test_library_networks`, with small images."""

from typing import Any

import torch

from contract.library_networks import Case


def vision_case(
    library: str, name: str, *, size: int = 32, argument: str = "x", **settings: Any
) -> Case:
    """Build the case of a network, with two images of a size under the name of an argument."""

    def make_images() -> dict[str, torch.Tensor]:
        return {argument: torch.randn(2, 3, size, size)}

    fields = settings.pop("fields", {})
    return Case(name, fields, make_images, library=library, **settings)


FOUR = {"img_size": 32, "depth": 4}
VISION_CASES = [
    *(
        vision_case("torchvision", name, **settings)
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
        vision_case("timm", name, **settings)
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
            "coatnet_nano_rw_224": {"size": 64, "fields": {"img_size": 64}, "rounding": True},
        }.items()
    ),
]
