"""Comparison of everything that the processes of a training were given, before they train.

Each process builds its own network and trainer, so a script that was edited on one machine, or
weights that one process has loaded, would train a mixture without a word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hocket.distributed import wire
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import WorldError
from hocket.optim.factory import build_optimizer, build_scheduler
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.setup import Setup
from hocket.training.session.choices import (
    as_text,
    describe_layer,
    loss_settings,
    method_choices,
)
from hocket.version import __version__

Choices = Mapping[str, Any]
"""JSON values by the names that an error calls them."""
SAME_SCRIPT = "start all processes with the same script, options and versions"
SAME_WEIGHTS = (
    "call torch.manual_seed before the network is built, and load weights in all processes; or "
    'let all take those of rank 0: Trainer(..., broadcast="first")'
)
SAME_CUTS = (
    f"{SAME_SCRIPT}, or the same Plan (--plan, which takes plan.json of a run folder, too)"
)
_OF_A_MACHINE = {"device", "streams", "timeout_s", "slow_timeout_s"}
_COMPARED_OTHERWISE = {"method", "optimizer", "scheduler", "loss", "evaluation_loss"}


def require_alike(gathered: Sequence[Choices], advice: str = SAME_SCRIPT) -> None:
    """Refuse to train unless all processes were given the same.

    Args:
        gathered: Choices of each process, by rank.
        advice: Advice for the error.

    Raises:
        WorldError: With the first choice that differs, and its two values.
    """
    first = gathered[0]
    for rank, own in enumerate(gathered):
        for name in {**first, **own}:
            if own.get(name) != first.get(name):
                raise WorldError(
                    f"the processes would not train the same: {name} is {first.get(name)} in "
                    f"rank 0, and {own.get(name)} in rank {rank}; {advice}"
                )


def require_same_training(
    world: World | SoloWorld, setup: Setup, network: nn.Module, *, resumes: bool
) -> None:
    """Compare what all processes were given before the network is cut, and their weights.

    With ``broadcast="first"`` they take the weights of rank 0.

    Args:
        world: This process among the others.
        setup: Options of the training.
        network: The network.
        resumes: True if a checkpoint is loaded later, which replaces the weights.

    Raises:
        WorldError: Something differs.
    """
    if world.size == 1:
        return
    # Compare choices and weights, in one exchange.
    compares_weights = setup.broadcast == "none" and not resumes
    digests = _digests(network) if compares_weights else {}
    given = [_choices(setup, network), digests]
    gathered = world.gather(given, "comparing what to train")
    require_alike([choices for choices, _ in gathered])
    require_alike([weights for _, weights in gathered], SAME_WEIGHTS)
    # Take the weights of rank 0, if that is wanted.
    if setup.broadcast == "first" and not resumes:
        world.copy_weights(network, source=0)


def require_same_stages(
    world: World | SoloWorld, setup: Setup, modules: Sequence[nn.Module], names: NetworkNames
) -> None:
    """Compare the stages of all processes, and how each would update them.

    Args:
        world: This process among the others.
        setup: Options of the training.
        modules: Layers of every stage.
        names: Names of their weights in the network.

    Raises:
        OptionError: The optimizer or the scheduler is not one for a stage.
        WorldError: Something differs.
    """
    if world.size == 1:
        return
    choices: dict[str, Any] = {}
    for stage, module in enumerate(modules):
        weights = list(names.of_parameters(module))
        choices[f"the list of weights of stage {stage}"] = [name for name, _ in weights]
        trained = [(name, weight) for name, weight in weights if weight.requires_grad]
        if trained:
            choices |= _updates(setup, trained, stage, len(modules))
    require_alike(world.gather(choices, "comparing stages"), SAME_CUTS)


def _choices(setup: Setup, network: nn.Module) -> dict[str, str]:
    """Return what a process was given, but for its stages and weights."""
    choices = {
        "the version of Hocket": __version__,
        "the version of PyTorch": torch.__version__.partition("+")[0],  # of any build
    }
    choices |= method_choices(setup.method)
    choices |= {
        field.name: as_text(getattr(setup, field.name))
        for field in fields(setup)
        if field.name not in _OF_A_MACHINE | _COMPARED_OTHERWISE
    }
    choices["loss"] = loss_settings(setup.loss)
    choices["evaluation_loss"] = loss_settings(setup.evaluation_loss)
    choices |= {
        f"layer {name!r}": describe_layer(layer) for name, layer in network.named_modules()
    }
    for name, value in _tensors(network).items():
        shape = tuple(value.shape) if not is_lazy(value) else "known at the first batch"
        frozen = " (frozen)" * (isinstance(value, nn.Parameter) and not value.requires_grad)
        choices[f"the form of {name!r}"] = f"{value.dtype} {shape}{frozen}"
    return choices


def _digests(network: nn.Module) -> dict[str, str]:
    """Return a digest of each weight and buffer that has values."""
    return {
        f"the digest of the initial {name!r}": f"{wire.checksum(wire.to_dense(value)):016x}"
        for name, value in _tensors(network).items()
        if not (is_lazy(value) or value.is_meta)
    }


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    state = network.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _updates(
    setup: Setup, trained: Sequence[tuple[str, nn.Parameter]], stage: int, stages: int
) -> dict[str, str]:
    """Return the optimizer and the scheduler that this process would give a stage.

    They are built as in one process, which builds them for all stages.
    """
    optimizer = build_optimizer(setup.optimizer, trained, stage, stages)
    owner = f"the optimizer of stage {stage}"
    schedule = f"the scheduler of stage {stage}"
    choices = {owner: type(optimizer).__name__, schedule: "None"}
    if setup.scheduler is not None:
        metric = setup.plateau_metric
        scheduler = build_scheduler(
            setup.scheduler, optimizer, stage, has_evaluations=True, metric=metric
        )
        choices[schedule] = type(scheduler).__name__
        choices |= {
            f"{name} of {schedule}": as_text(value)
            for name, value in scheduler.state_dict().items()
        }
    for number, group in enumerate(optimizer.param_groups):
        numbers = group | {"params": len(group["params"])}
        choices |= {
            f"{name} of group {number} of {owner}": as_text(value)
            for name, value in numbers.items()
        }
    return choices
