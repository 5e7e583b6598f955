"""Settings of published trainings, by name; a run starts from one and overrides it."""

from collections.abc import Mapping
from typing import Any

from hocket.errors import OptionError, unknown_name

_CIFAR = {
    "method": "fdg",
    "network": "resnet20",
    "plan": "paper",
    "data": "cifar10",
    "epochs": 300,
    "batch_size": 128,
    "optimizer": "SGD:lr=0.1,momentum=0.9,weight_decay=0.0005",
    "scheduler": "MultiStepLR:milestones=[150,225,275],gamma=0.1",
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    # FDG, arXiv 1906.09108, section 4.
    "fdg-cifar": _CIFAR,
    # The same, for ResNet-110, and for ResNet-56 on 3 and 4 stages: 3 epochs at a tenth first.
    "fdg-cifar-warmup": {
        **_CIFAR,
        "network": "resnet56",
        "scheduler": f"ConstantLR:factor=0.1,total_iters=3+{_CIFAR['scheduler']}",
    },
    # DGL compared with DDG, arXiv 1901.08164: ResNet-110 on 2 stages at a tenth of the rate.
    "dgl-cifar": {
        **_CIFAR,
        "method": "dgl",
        "network": "resnet110",
        "optimizer": "SGD:lr=0.01,momentum=0.9,weight_decay=0.0005",
        "scheduler": "MultiStepLR:milestones=[150,225],gamma=0.1",
    },
    # Asynchronous DGL with one slow stage of six, as in the example of the official code of
    # arXiv 1901.08164: the fourth stage takes a tenth fewer turns, at equal intervals.
    "dgl-async-slowdown": {
        **_CIFAR,
        "method": "dgl-async:head=mlp,buffer=30",
        "stages": 6,
        "stage_speeds": "1,1,1,0.9,1,1",
        "network": "dgl6:pooling=buffer",
        "plan": "block1,block2,block3,block4,block5",
        "epochs": 50,
        "scheduler": "StepLR:step_size=15,gamma=0.2",
    },
    # A small transformer on the characters of a text: nanoGPT (github.com/karpathy/nanoGPT),
    # config/train_shakespeare_char.py with the sizes that its README gives for a CPU. There
    # the norm of the whole network is clipped, here the norm of each stage; there the network
    # has no biases, and its head shares the embedding's weights.
    "gpt-characters": {
        "network": "gpt:depth=4,heads=4,width=128",
        "data": "text:context=64",
        "batch_size": 12,
        "updates": 2000,
        "evaluate_every": 250,
        "optimizer": "AdamW:lr=0.001,betas=[0.9,0.99],weight_decay=0.1",
        "weight_decay_on": "matrices",
        "warmup_updates": 100,
        "scheduler": "CosineAnnealingLR:T_max=1900,eta_min=0.0001",
        "scheduler_unit": "update",
        "clip": "1.0",
    },
    # DDG and Features Replay as in their official code (Nesterov momentum).
    "ddg-cifar": {
        **_CIFAR,
        "method": "ddg",
        "network": "resnet110",
        "optimizer": "SGD:lr=0.01,momentum=0.9,nesterov=true,weight_decay=0.0005",
        "scheduler": "MultiStepLR:milestones=[150,225],gamma=0.1",
    },
}


def recipe(name: str) -> dict[str, Any]:
    """Return the values that a recipe sets.

    Raises:
        OptionError: There is no such recipe.

    >>> recipe("fdg-cifar")["epochs"]
    300
    """
    if name not in RECIPES:
        raise OptionError(unknown_name("recipe", name, RECIPES))
    return dict(RECIPES[name])
