"""All that a training is between two ticks, as the parts of a checkpoint, and back.

A training goes on exactly where it has the stages of the checkpoint. Where it has others, their
weights and what their optimizers remember go on under the names that the network gives them.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hocket.checkpoint.directory import Manifest, newest_first, read_manifest, read_part
from hocket.engine.engine import LockstepEngine
from hocket.engine.setup import Setup
from hocket.errors import CheckpointError, listed
from hocket.stage.forward_state import set_values
from hocket.stage.stage import Stage
from hocket.training.metrics import EpochResult
from hocket.tree import Tree


@dataclass(frozen=True)
class ResumePoint:
    """Where a training goes on.

    Attributes:
        epoch: Whole epochs behind it.
        batch: Batches of the next one that have entered already.
        note: What the caller had put down when the checkpoint was written.
        history: What the epochs of the ``fit`` came to that are over.
        tick: Ticks behind it.
    """

    epoch: int
    batch: int
    note: Any = None
    history: tuple[EpochResult, ...] = ()
    tick: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint that was read, as far as this process needs it.

    Attributes:
        folder: Where it is.
        manifest: What it is of.
        parts: States by the name of their file.
    """

    folder: Path
    manifest: Manifest
    parts: dict[str, Tree]


WantedFiles: TypeAlias = Callable[[Manifest], Iterable[str]]
"""The files to read of a checkpoint."""


def part_name(stage: int, replica: int) -> str:
    """The file of a stage's state."""
    return f"stage{stage}-replica{replica}.pt" if replica else f"stage{stage}.pt"


def parameter_names(network: nn.Module, module: nn.Module, index: int) -> dict[str, str]:
    """The network's names for a stage's weights and buffers, by the stage's own."""
    known = {id(value): name for name, value in _named(network)}
    return {
        name: known.get(id(value), f"stage {index}: {name}") for name, value in _named(module)
    }


def reshard_names(stage: Stage, network: nn.Module) -> dict[str, Any]:
    """What lets the state of a stage go on in stages cut elsewhere."""
    known = {id(value): name for name, value in network.named_parameters()}
    return {
        "names": parameter_names(network, stage.module, stage.index),
        "trained": [known.get(id(p)) for p in stage.updater.ordered_parameters],
    }


def build_manifest(
    ticks: int,
    setup: Setup,
    names: list[list[str]],
    replicas: int,
    course: dict[str, Any],
) -> Manifest:
    """The manifest of a checkpoint taken here and now, without seals."""
    return Manifest(
        tick=ticks,
        stages=names,
        replicas=replicas,
        setup=setup_choices(setup),
        versions={"torch": torch.__version__, "hocket": version("hocket")},
        threads=torch.get_num_threads(),
        course=course,
        parts={},
    )


def setup_choices(setup: Setup) -> dict[str, str]:
    """The choices that the bits of a training depend on, in words."""
    words = {
        name: str(getattr(setup, name))
        for name in (
            "method",
            "codec",
            "seed",
            "precision",
            "batchnorm",
            "scheduler_unit",
            "stage_speeds",
        )
    }
    # What an object of no better name is printed as differs from process to process.
    return {name: re.sub(r" at 0x[0-9a-f]+", "", text) for name, text in words.items()}


def newest_common_checkpoint(
    folder: Path, wanted: WantedFiles, gather: Callable[[Any], list[Any]]
) -> tuple[Snapshot, list[str]]:
    """The newest checkpoint that all processes can read, and why none that is newer.

    Args:
        folder: One checkpoint, or where they are.
        wanted: Which files of a checkpoint this process needs.
        gather: Gives what all processes give it.

    Raises:
        CheckpointError: There is none.
    """
    problems: list[str] = []
    for place in gather([str(place) for place in newest_first(folder)])[0]:
        snapshot, problem = None, None
        try:
            snapshot = open_checkpoint(Path(place), wanted)
        except CheckpointError as error:
            problem = str(error)
        found = list(dict.fromkeys(own for own in gather(problem) if own is not None))
        if not found and snapshot is not None:
            return snapshot, problems
        problems += found
    why = problems or ["there is no folder of a checkpoint in it"]
    raise CheckpointError(listed(f"cannot go on from {str(folder)!r}", why))


def open_checkpoint(folder: Path, wanted: WantedFiles) -> Snapshot:
    """The parts of one checkpoint.

    Raises:
        CheckpointError: It is damaged.
    """
    manifest = read_manifest(folder)
    parts = {name: read_part(folder, name, manifest) for name in wanted(manifest)}
    return Snapshot(folder, manifest, parts)


def require_same_setup(manifest: Manifest, setup: Setup) -> None:
    """Refuse to go on with another training.

    Raises:
        CheckpointError: With every choice that differs.
    """
    own = setup_choices(setup)
    problems = [
        f"{name} is {own[name]}, and was {was}"
        for name, was in manifest.setup.items()
        if own.get(name) != was
    ]
    if problems:
        raise CheckpointError(listed("the checkpoint is of another training", problems))


def count_in_flight(snapshot: Snapshot) -> int:
    """How many batches had entered and were not through."""
    return len(next(iter(snapshot.parts.values()))["column"]["entered"])


def warn_of_changes(snapshot: Snapshot, exact: bool, newer: Sequence[str]) -> None:
    """Say what keeps the training from being the one that never stopped.

    Args:
        snapshot: What it goes on from.
        exact: Whether the stages are the same.
        newer: Why it does not go on from a newer checkpoint.
    """
    manifest = snapshot.manifest
    words = [f"a newer checkpoint is not used: {why}" for why in newer]
    if not exact:
        words.append(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training: weights and optimizers go on under their names, and "
            f"{count_in_flight(snapshot)} batches that were in flight are dropped"
        )
    words += [
        f"the {what} was {was} and is {now}: the training goes on from the same state, but its "
        "bits may be others than without a restart"
        for what, was, now in (
            ("number of PyTorch's threads", manifest.threads, torch.get_num_threads()),
            ("version of PyTorch", manifest.versions["torch"], torch.__version__),
        )
        if was != now
    ]
    for word in words:
        warnings.warn(word, stacklevel=4)


def require_matching_stages(stages: Sequence[Stage], states: Sequence[Tree]) -> None:
    """Refuse states of other layers, before anything is changed.

    Raises:
        CheckpointError: With everything that does not fit.
    """
    pairs = zip(stages, states, strict=True)
    problems = [problem for stage, state in pairs for problem in stage.mismatches(state)]
    if problems:
        raise CheckpointError(listed("the checkpoint is of another network", problems))


def reshard(engine: LockstepEngine, network: nn.Module, snapshot: Snapshot, epoch: int) -> None:
    """Go on with stages that are cut elsewhere, from all states of a checkpoint.

    Raises:
        CheckpointError: The checkpoint is of another network.
    """
    states = [state for name, state in snapshot.parts.items() if "replica" not in name]
    values: dict[str, Tensor] = {}
    remembered: dict[str, Any] = {}
    for state in states:
        values |= {state["names"][name]: value for name, value in state["layers"].items()}
        optimizer = state["updater"]["optimizer"] or {"state": {}}
        for number, name in enumerate(state["trained"]):
            if name is not None and number in optimizer["state"]:
                remembered[name] = optimizer["state"][number]
    own = dict(_named(network))
    shapes = {name: (value.shape, value.dtype) for name, value in own.items()}
    found = {name: (value.shape, value.dtype) for name, value in values.items() if name in own}
    if shapes != found:
        different = [name for name in own if found.get(name) != shapes[name]]
        raise CheckpointError(
            f"the checkpoint is of another network: it has no {', '.join(different)} of the "
            "same shape and type"
        )
    was, now = _kinds(states), _kinds(engine.state_dict())
    if not now <= was:
        raise CheckpointError(
            f"the weights were updated by {', '.join(was)}, and are to be by {', '.join(now)}"
        )
    set_values(network, {name: values[name] for name in own})
    column = states[0]["column"]
    updates = max(state["updater"]["version"] for state in states)
    for stage in engine.stages:
        names = reshard_names(stage, network)["trained"]
        stage.updater.adopt_state([remembered.get(name) for name in names], epoch, updates)
    engine.start_at(column["tick_count"], column["batch_count"])


def _kinds(states: Sequence[Tree]) -> set[str]:
    """The optimizers of all stages that have one."""
    return {state["updater"]["kinds"][0] for state in states} - {"NoneType"}


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]
