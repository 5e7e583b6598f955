"""The state of a training between two ticks, as the parts of a checkpoint.

A training continues exactly where it has the stages of the checkpoint. With other stages it is
resharded: weights and optimizer states continue under the names that the network gives them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hocket.checkpoint.directory import Manifest, newest_first, read_manifest, read_part
from hocket.engine.engine import LockstepEngine
from hocket.errors import CheckpointError, format_problems, raise_problems, warn
from hocket.stage.stage import Stage
from hocket.stage.weight_copies.forward_state import named_tensors, set_tensors
from hocket.training.results.metrics import EpochResult
from hocket.training.session.cut_network import parameter_names
from hocket.tree import Tree


@dataclass(frozen=True)
class ResumePoint:
    """Position at which a training continues.

    Attributes:
        epoch: Number of epochs done.
        batch: Batches of the next epoch that have entered already.
        note: Value that the caller gave when the checkpoint was written.
        notes: Values that were given in all processes whose parts this one has read.
        history: Results of the epochs of the ``fit`` that are done.
        tick: Number of ticks done.
        updates: Number of updates that the batches of the ``fit`` so far lead to.
    """

    epoch: int
    batch: int
    note: Any = None
    notes: tuple[Any, ...] = ()
    history: tuple[EpochResult, ...] = ()
    tick: int = 0
    updates: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The parts of a checkpoint that this process has read, by the names of their files."""

    folder: Path
    manifest: Manifest
    parts: dict[str, Tree]


def part_name(stage: int, replica: int) -> str:
    """Return the name of the file with a stage's state."""
    return f"stage{stage}-replica{replica}.pt" if replica else f"stage{stage}.pt"


def trained_names(stage: Stage, network: nn.Module) -> list[str | None]:
    """Return the network's name of each weight of a stage's optimizer; None if it has none."""
    known = {id(value): name for name, value in network.named_parameters()}
    groups = getattr(stage.updater.optimizer, "param_groups", [])
    return [known.get(id(weight)) for group in groups for weight in group["params"]]


def callback_tensors(
    stage: Stage, network: nn.Module, states: Sequence[Tree]
) -> dict[str, dict[str, Tensor]]:
    """Return what callbacks have kept for the weights and buffers of a stage.

    Args:
        stage: The stage, perhaps cut elsewhere than before the checkpoint.
        network: The network, whose names the tensors are found by.
        states: States of the stages of the checkpoint that may hold them.
    """
    values: dict[str, dict[str, Tensor]] = {}
    for state in states:
        for callback, tensors in state["callbacks"].items():
            named = {state["names"][name]: value for name, value in tensors.items()}
            values.setdefault(callback, {}).update(named)
    names = parameter_names(network, stage.module, stage.index)
    return {
        callback: {name: named[own] for name, own in names.items() if own in named}
        for callback, named in values.items()
    }


def newest_common_checkpoint(
    folder: Path,
    wanted: Callable[[Manifest], Iterable[str]],
    gather: Callable[[Any], list[Any]],
) -> tuple[Snapshot, list[str]]:
    """Read the newest checkpoint that all processes can read, and say why no newer one is.

    Args:
        folder: One checkpoint, or a folder of checkpoints.
        wanted: Chooses the files that this process needs.
        gather: Returns what all processes give it.

    Raises:
        CheckpointError: There is none.
    """
    # Try one after another, from the newest; all processes try the same one.
    problems: list[str] = []
    for place in gather([str(place) for place in newest_first(folder)])[0]:
        snapshot, problem = None, None
        try:
            snapshot = open_checkpoint(Path(place), wanted)
        except CheckpointError as error:
            problem = str(error)
        told = list(dict.fromkeys(text for text in gather(problem) if text is not None))
        if not told and snapshot is not None:
            return snapshot, problems
        problems += told
    # Say why there is none.
    why = list(dict.fromkeys(problems))
    if not why and (parts := [name for name in folder.glob("stage*") if newest_first(name)]):
        why = [
            f"each of {len(parts)} stages that ran freely, in a process of its own, has its "
            f"own folder in it; give --processes {len(parts)}, or start as many processes"
        ]
    why = why or ["there is no folder of a checkpoint in it"]
    raise CheckpointError(format_problems(f"cannot resume from {str(folder)!r}", why))


def open_checkpoint(folder: Path, wanted: Callable[[Manifest], Iterable[str]]) -> Snapshot:
    """Read the wanted parts of one checkpoint.

    Raises:
        CheckpointError: It is damaged.
    """
    manifest = read_manifest(folder)
    parts = {name: read_part(folder, name, manifest) for name in wanted(manifest)}
    return Snapshot(folder, manifest, parts)


def warn_of_changes(snapshot: Snapshot, exact: bool, newer: Sequence[str]) -> None:
    """Warn of all that may make the training differ from one without a restart.

    Args:
        snapshot: The checkpoint.
        exact: True if the stages are the same.
        newer: Reasons why newer checkpoints are not used.
    """
    # Collect what differs: the checkpoint, the stages, the machine.
    manifest = snapshot.manifest
    words = [f"a newer checkpoint is not used: {why}" for why in newer]
    if not exact:
        in_flight = len(next(iter(snapshot.parts.values()))["schedule"]["entered"])
        words.append(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training: weights and optimizers continue under their names, and "
            f"{in_flight} batches that were in flight are dropped"
        )
    words += [
        f"the {what} was {was} and is {now}: the training continues from the same state, but "
        "its bits may differ from those of a training without a restart"
        for what, was, now in (
            ("number of PyTorch's threads", manifest.threads, torch.get_num_threads()),
            ("version of PyTorch", manifest.versions["torch"], torch.__version__),
        )
        if was != now
    ]
    for word in words:
        warn(word)


def require_matching_stages(pairs: Sequence[tuple[Stage, Tree]], network: nn.Module) -> None:
    """Refuse states of other layers, before anything is changed.

    Raises:
        CheckpointError: With everything that does not match.
    """
    problems = []
    for stage, state in pairs:
        problems += stage.mismatches(state) or [
            f"stage {stage.index}: weight {number} of the optimizer was {was!r}, and is {now!r}"
            for number, (was, now) in enumerate(
                zip_longest(state["trained"], trained_names(stage, network))
            )
            if was != now
        ]
    raise_problems(CheckpointError, "the checkpoint is of another network", problems)


def resharded(
    engine: LockstepEngine, network: nn.Module, snapshot: Snapshot
) -> Callable[[], None]:
    """Return a function that loads all states of a checkpoint into stages cut elsewhere.

    Args:
        engine: Engine with the new stages.
        network: The network, whose names the states are found by.
        snapshot: The checkpoint, with the parts of all stages.

    Raises:
        CheckpointError: The checkpoint is of another network, or the schedulers follow losses.
    """
    # Collect weights and optimizer states under the network's names.
    states = [state for name, state in snapshot.parts.items() if "replica" not in name]
    values: dict[str, Tensor] = {}
    optimizer_states: dict[str | None, Any] = {}
    for state in states:
        values |= {state["names"][name]: value for name, value in state["layers"].items()}
        optimizer = state["updater"]["optimizer"] or {"state": {}}
        if "state" not in optimizer:
            raise CheckpointError(
                f"the state_dict of {state['updater']['kinds'][0]} has a form that only the "
                "same stages can load; resume with their number and the same cuts"
            )
        for number, name in enumerate(state["trained"]):
            if name is not None and number in optimizer["state"]:
                optimizer_states[name] = optimizer["state"][number]
    # Refuse another network, other optimizers, and schedulers whose losses are not known.
    form = attrgetter("shape", "dtype")
    wanted = {name: form(value) for name, value in named_tensors(network).items()}
    # Without buffers that the network has no name for.
    values = {n: v for n, v in values.items() if n in wanted or not n.startswith("stage ")}
    given = {name: form(value) for name, value in values.items()}
    if different := [n for n in wanted | given if given.get(n) != wanted.get(n)]:
        raise CheckpointError(
            f"the checkpoint is of another network: not both have {', '.join(different)}, with "
            "the same shape and type; if its forward registers buffers, run it once before"
        )
    was = {state["updater"]["kinds"][0] for state in states} - {"NoneType"}
    now = {type(stage.updater.optimizer).__name__ for stage in engine.stages} - {"NoneType"}
    if not now <= was:
        raise CheckpointError(
            f"the weights were updated by {', '.join(was)}, and are to be by {', '.join(now)}"
        )
    if any(stage.updater.follows_losses for stage in engine.stages):  # which are not known
        raise CheckpointError(
            "ReduceLROnPlateau continues with the stages that it began with; resume with "
            "the same number of stages and the same cuts"
        )
    schedule, epoch = states[0]["schedule"], snapshot.manifest.fit["epoch"]
    updates = max(state["updater"]["version"] for state in states)

    def load() -> None:
        set_tensors(network, values)
        for stage in engine.stages:
            own = [optimizer_states.get(name) for name in trained_names(stage, network)]
            stage.updater.adopt_state(own, epoch, updates)
        engine.start_at(schedule["tick_count"], schedule["batch_count"], updates)

    return load  # with nothing in flight
