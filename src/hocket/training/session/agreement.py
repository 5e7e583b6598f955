"""Comparison of what processes were given before they train, and with a resumed checkpoint.

Each process builds its own network and trainer, so a script that was edited on one machine, or
weights that one process has loaded, would train a mixture without a word.

When a training is resumed, options that its bits depend on must be the same. The numbers of
optimizers and schedulers are part of a checkpoint, so those that are given now have no effect.
Layers and losses are code, so only their settings are compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hocket.checkpoint.directory import Manifest
from hocket.distributed import wire
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import CheckpointError, WorldError, format_problems, raise_problems, warn
from hocket.methods.method import Method
from hocket.optim.factory import build_optimizer, build_scheduler
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.tree import Tree
from hocket.version import __version__

SAME_SCRIPT = "start all processes with the same script, options and versions"
SAME_WEIGHTS = (
    "call torch.manual_seed before the network is built, and load weights in all processes; or "
    'let all take those of rank 0: Trainer(..., broadcast="first")'
)
SAME_CUTS = (
    f"{SAME_SCRIPT}, or the same Plan (--plan, which takes plan.json of a run folder, too)"
)
_OF_A_MACHINE = {"device", "streams", "cuda_graphs", "timeout_s", "slow_timeout_s"}
_COMPARED_OTHERWISE = {"method", "optimizer", "scheduler", "loss", "evaluation_loss"}
_OF_SCHEDULES = (
    "T_max", "T_0", "T_mult", "eta_min", "gamma", "step_size", "milestones", "total_steps",
    "total_iters", "start_factor", "end_factor", "power", "factor", "patience",
)  # fmt: skip
"""Attributes of PyTorch's schedulers that do not change in a training."""


def require_alike(gathered: Sequence[Mapping[str, Any]], advice: str = SAME_SCRIPT) -> None:
    """Refuse to train unless all processes were given the same JSON values, by name.

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
    digests = {
        f"the digest of the initial {name!r}": f"{wire.checksum(wire.to_dense(value)):016x}"
        for name, value in _tensors(network).items()
        if compares_weights and not (is_lazy(value) or value.is_meta)
    }
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


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return dict([*network.named_parameters(), *network.named_buffers()])


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


def setup_choices(setup: Setup) -> dict[str, str]:
    """Return the options that the bits of a training depend on, as text."""
    names = (
        "codec", "seed", "precision", "batchnorm", "replica_delay", "meet", "scheduler_unit",
        "warmup_updates", "clip", "stage_speeds",
    )  # fmt: skip
    return method_choices(setup.method) | {n: as_text(getattr(setup, n)) for n in names}


def method_choices(method: Method) -> dict[str, str]:
    """Return what a method is made of, as text."""
    return {
        f"{field.name} of the method": as_text(getattr(method, field.name))
        for field in fields(method)
    }


def as_text(value: object) -> str:
    """Return the text of a choice, the same in all processes."""
    if isinstance(value, frozenset):  # whose order may differ
        value = sorted(value)
    # So does the address of an object that has no better name; it is known by what it holds.
    parts = value if isinstance(value, tuple) else (value,)
    held = [getattr(one, "__dict__", "") for one in parts if repr(one) == object.__repr__(one)]
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(map(str, [value, *held])))


def require_same_setup(manifest: Manifest, setup: Setup) -> None:
    """Refuse to continue another training.

    Raises:
        CheckpointError: With every option that differs.
    """
    choices = setup_choices(setup)
    problems = [
        f"{name} is {choices.get(name, 'unknown')}, and was {was}"
        for name, was in manifest.setup.items()
        if _plain_numbers(choices.get(name, "")) != _plain_numbers(was)
    ]
    title = (
        "the checkpoint is of another training (to begin with its weights, resume a trainer "
        "with its choices and load its state_dict() into a new network)"
    )
    raise_problems(CheckpointError, title, problems)


def _plain_numbers(text: str) -> str:
    """Return a text with equal numbers written alike: 1.0 as 1, NumPy's as Python's."""
    return re.sub(r"(\d)\.0(?![\w.])", r"\1", re.sub(r"np\.float64\((.*?)\)", r"\1", text))


def describe_layer(layer: nn.Module) -> str:
    """Return the class of a layer, with the settings of one of PyTorch's own."""
    settings = layer.extra_repr() if _is_of_torch(layer) else "..."
    return f"{type(layer).__name__}({settings})"


def _is_of_torch(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("torch.nn.")


def loss_settings(loss: object) -> str:
    """Return the name of a loss, with its plain settings.

    >>> loss_settings(nn.CrossEntropyLoss(label_smoothing=0.1))
    'CrossEntropyLoss(reduction=mean, ignore_index=-100, label_smoothing=0.1)'
    >>> loss_settings(partial(nn.functional.huber_loss, delta=2.0))
    'huber_loss(delta=2.0)'
    """
    if isinstance(loss, partial):
        return f"{_name_of(loss.func)}({_plain_settings(loss.keywords)})"
    if isinstance(loss, nn.Module):
        return f"{_name_of(type(loss))}({_plain_settings(vars(loss))})"
    return _name_of(loss if hasattr(loss, "__qualname__") else type(loss))


def _name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _plain_settings(values: Mapping[str, object]) -> str:
    """Return the numbers and texts among values by name, but for names that begin with _."""
    return ", ".join(
        f"{name}={value}"
        for name, value in values.items()
        if isinstance(value, int | float | str) and name[0] != "_" and name != "training"
    )


def settings_of(stage: Stage, network: nn.Module, loss: object) -> Tree:
    """Return the settings of PyTorch's own layers in a stage, and of the loss.

    Args:
        stage: The stage.
        network: The network, which names the layers.
        loss: Loss of the training.
    """
    names = {id(layer): name for name, layer in network.named_modules()}
    layers = {
        names[id(layer)]: describe_layer(layer)
        for layer in stage.module.modules()
        if id(layer) in names and _is_of_torch(layer)
    }
    return {"layers": layers, "loss": loss_settings(loss)}


def warn_of_changed_choices(stage: Stage, then: Tree, now: Tree) -> None:
    """Warn of settings that differ from the checkpoint, before its state is loaded.

    Args:
        stage: The stage, as it was built.
        then: State of the stage in the checkpoint.
        now: What `settings_of` returns for the stage.
    """
    # Name changes of layers and of the loss, which have an effect.
    settings = then["settings"]
    changed = [
        f"layer {name!r} was {settings['layers'][name]}, and is {words}"
        for name, words in now["layers"].items()
        if settings["layers"].get(name, words) != words
    ]
    if settings["loss"] != now["loss"]:
        changed.append(f"the loss was {settings['loss']}, and is {now['loss']}")
    if changed:
        title = f"stage {stage.index} goes on with other settings than before the checkpoint"
        warn(format_problems(title, changed))
    # Name changes that the checkpoint overrules.
    overruled = [
        f"{name} was {was}, and is {given} in what was given now"
        for name, was, given in _overruled(stage, then["updater"])
    ]
    if overruled:
        title = f"stage {stage.index}: the checkpoint decides, so these changes have no effect"
        warn(format_problems(title, overruled))


def _overruled(stage: Stage, state: Tree) -> Iterator[tuple[str, object, object]]:
    """Yield the name of each number that the state overrules, with both values."""
    # Groups of weights. A scheduler changes the rate at once, and keeps the one that was given.
    updater = stage.updater
    compared: list[tuple[Tree, Tree, Iterable[str]]] = []
    for then, now in zip(state["given_groups"], updater.given_groups, strict=False):
        moving = "lr" if "initial_lr" in then else "initial_lr"
        compared.append((then, now, [name for name in now if name != moving]))

    # The scheduler, and those within it.
    schedules: list[tuple[Tree, Tree]] = []
    if updater.scheduler is not None:
        schedules.append((state["scheduler"], updater.scheduler.state_dict()))
    while schedules:
        then, now = schedules.pop(0)
        compared.append((then, now, _OF_SCHEDULES))
        inner = then.get("_schedulers", []), now.get("_schedulers", [])
        schedules.extend(zip(*inner, strict=False))

    # Numbers that differ.
    for then, now, names in compared:
        for name in names:
            if name in then and name in now and then[name] != now[name]:
                yield name.removeprefix("initial_"), then[name], now[name]
