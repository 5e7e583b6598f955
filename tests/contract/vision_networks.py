"""Networks of torchvision and timm for `test_library_networks`, with small images."""

from collections.abc import Callable
from functools import partial

import torch

from contract.library_networks import Case
from hocket.tree import Tree


def images(size: int = 32, argument: str = "x") -> Callable[[], Tree]:
    """Function that makes two images of a size under the name of an argument."""
    return lambda: {argument: torch.randn(2, 3, size, size)}


torchvision, timm = (partial(Case, library=name) for name in ("torchvision", "timm"))
FOUR = {"img_size": 32, "depth": 4}
AS_THEY_ARE = {
    torchvision: """resnet18 resnext50_32x4d densenet121 mobilenet_v2 mobilenet_v3_small
        shufflenet_v2_x0_5 squeezenet1_1 mnasnet0_5 efficientnet_b0 regnet_y_400mf
        convnext_tiny swin_t""",
    timm: """resnet10t poolformer_s12 convnext_atto inception_next_atto edgenext_xx_small
        efficientnet_lite0 mobilenetv4_conv_small ghostnet_050 regnetx_002 dla34""",
}
VISION_CASES = [
    *(
        case(name, {}, images())
        for case, names in AS_THEY_ARE.items()
        for name in names.split()
    ),
    torchvision("googlenet", {"aux_logits": False, "init_weights": False}, images(64)),
    torchvision("lraspp_mobilenet_v3_large", {"weights_backbone": None}, images(32, "input")),
    timm("vit_tiny_patch16_224", FOUR, images()),
    timm("deit3_small_patch16_224", FOUR, images()),
    timm("beit_base_patch16_224", FOUR, images()),
    timm("cait_xxs24_224", FOUR, images(), rounding=True),
    timm(
        "eva02_tiny_patch14_224",
        {"img_size": 28, "depth": 4},
        images(28),
        refused="buffer 'rope.pos_embed' is shared by stages 0, 1",
    ),
    timm("mixer_s32_224", {"img_size": 32}, images()),
    timm("resmlp_12_224", {"img_size": 32}, images()),
    timm("xcit_nano_12_p16_224", {}, images(), rounding=True),
    timm("fastvit_t8", {}, images(64)),
    timm("pit_ti_224", {"img_size": 64}, images(64)),
    timm("coatnet_nano_rw_224", {"img_size": 64}, images(64), rounding=True),
]
