"""Choices of a training, compared with the checkpoint that it resumes.

Options that the bits of a training depend on must be the same. The numbers of optimizers and
schedulers are part of a checkpoint, so those that are given now have no effect. Layers and
losses are code, so only their settings are compared.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from torch import nn

from hocket.checkpoint.directory import Manifest
from hocket.errors import CheckpointError, format_problems, warn
from hocket.methods.method import Method
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.tree import Tree

_OF_SCHEDULES = (
    "T_max", "T_0", "T_mult", "eta_min", "gamma", "step_size", "milestones", "total_steps",
    "total_iters", "start_factor", "end_factor", "power", "factor", "patience",
)  # fmt: skip
"""Attributes of PyTorch's schedulers that do not change in a training."""


def setup_choices(setup: Setup) -> dict[str, str]:
    """Return the options that the bits of a training depend on, as text."""
    names = (
        "codec",
        "seed",
        "precision",
        "batchnorm",
        "scheduler_unit",
        "warmup_updates",
        "clip",
        "stage_speeds",
    )
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
    # So does the address of an object that has no better name.
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def require_same_setup(manifest: Manifest, setup: Setup) -> None:
    """Refuse to continue another training.

    Raises:
        CheckpointError: With every option that differs.
    """
    choices = setup_choices(setup)
    problems = [
        f"{name} is {choices.get(name, 'unknown')}, and was {was}"
        for name, was in manifest.setup.items()
        if choices.get(name) != was
    ]
    if problems:
        title = (
            "the checkpoint is of another training (to begin with its weights, resume a "
            "trainer with its choices and load its state_dict() into a new network)"
        )
        raise CheckpointError(format_problems(title, problems))


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
    """Yield the name of each number that the state overrules, with both values.

    Args:
        stage: The stage, as it was built.
        state: State of its updater.
    """
    updater = stage.updater
    for then, now in zip(state["given_groups"], updater.given_groups, strict=False):
        # A scheduler changes the rate at once, and keeps the one that was given.
        moving = "lr" if "initial_lr" in then else "initial_lr"
        yield from _different(then, now, [name for name in now if name != moving])
    if updater.scheduler is not None:
        yield from _different_schedules(state["scheduler"], updater.scheduler.state_dict())


def _different_schedules(then: Tree, now: Tree) -> Iterator[tuple[str, object, object]]:
    """Yield the differences of two states of schedulers, and of those within them."""
    yield from _different(then, now, _OF_SCHEDULES)
    inner = then.get("_schedulers", []), now.get("_schedulers", [])
    for old, new in zip(*inner, strict=False):
        yield from _different_schedules(old, new)


def _different(
    then: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, object, object]]:
    """Yield the names whose values differ, with both values.

    Args:
        then: Values in the checkpoint.
        now: Values as they were given.
        names: Names to compare.
    """
    for name in names:
        if name in then and name in now and then[name] != now[name]:
            yield name.removeprefix("initial_"), then[name], now[name]
