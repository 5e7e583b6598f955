"""The checkpoints of a training: taken from its rig and course, and put back into them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from hocket.checkpoint import Checkpoints, CheckpointWriter, Manifest
from hocket.checkpoint.directory import checkpoint_name, newest_first
from hocket.engine.distributed import DistributedEngine
from hocket.engine.serial import SerialEngine
from hocket.errors import CheckpointError, HocketError, OptionError, PeerLostError
from hocket.training.fit_state import FitState
from hocket.training.session import Session
from hocket.training.state import (
    ResumePoint,
    build_manifest,
    newest_common_checkpoint,
    open_checkpoint,
    part_name,
    require_matching_stages,
    require_same_setup,
    reshard,
    reshard_names,
    warn_of_changes,
)

Save: TypeAlias = Callable[[int | None], None]
"""Leaves a checkpoint: at once, or if one is due after so many ticks."""


@contextmanager
def saving(
    checkpoints: Checkpoints | None, rig: Session, course: FitState, train: object
) -> Iterator[Save]:
    """Inside, checkpoints can be left; at the end the last one is on the disk.

    Args:
        checkpoints: Where and when; None to leave none.
        rig: What is trained.
        course: Where it has come to.
        train: The training data, whose chance is kept.

    Raises:
        CheckpointError: One cannot be written, and the training is to stop for that.
        OptionError: The stages do not keep what a checkpoint needs.
        HocketError: No batch has been seen yet.
    """
    if checkpoints is None:
        yield lambda ticks: None
        return
    if not rig.setup.resumable:
        raise OptionError(
            "checkpoints need what was in flight; build the trainer with resumable=True"
        )
    world = rig.world
    if rig.detached:  # each stage saves at its own turns
        own = checkpoints.folder / str(rig.process_name)
        checkpoints, world = replace(checkpoints, folder=own), None
    saver = CheckpointWriter(checkpoints, world)

    def save(ticks: int | None) -> None:
        if ticks is None or saver.due(ticks):
            note = checkpoints.note() if checkpoints.note else None
            _write(saver, rig, course, train, note)

    try:
        yield save
    except BaseException as error:
        # Where another process has failed nobody waits for its part.
        if world is None or isinstance(error, KeyboardInterrupt):
            saver.wait()
        raise
    saver.wait()
    rig.gather(None)  # it is sealed for all


def _write(
    saver: CheckpointWriter, rig: Session, course: FitState, train: object, note: Any
) -> None:
    if rig.engine is None:
        raise HocketError("there is nothing to save before the first batch")
    if (name := checkpoint_name(rig.engine.tick_count, course.epoch)) == saver.last:
        return
    parts = {
        part_name(stage.index, rig.replica): state
        | reshard_names(stage, rig.network)
        | {"course": course.state_dict(stage.index, train), "note": note, "sample": rig.sample}
        for stage, state in zip(rig.engine.stages, rig.engine.state_dict(), strict=True)
    }
    manifest = build_manifest(
        rig.engine.tick_count, rig.setup, rig.parameter_names, rig.replicas, course.summary()
    )
    faults = [
        (stage.index, fault)
        for stage in rig.engine.stages
        if (fault := stage.persistent_fault())
    ]
    saver.save(name, parts, manifest, "; ".join(f"stage {k}: the {what}" for k, what in faults))


def resume_from(rig: Session, folder: Path) -> tuple[FitState, ResumePoint]:
    """Put the newest checkpoint of a folder that is whole, or a given one, into a rig.

    Raises:
        CheckpointError: There is none, or it is of another training; nothing has been changed.
        PeerLostError: There is none yet, and this process was started again, alone.
        HocketError: The rig has trained already.
    """
    if rig.engine is not None and rig.engine.tick_count:
        raise HocketError("this trainer has trained already; resume with a new one")
    places = range(rig.stage_count) if rig.world is None else [rig.world.stage]
    own = [part_name(stage, rig.replica) for stage in places]

    def wanted(manifest: Manifest) -> Iterable[str]:
        alike = (len(manifest.stages), manifest.replicas) == (rig.stage_count, rig.replicas)
        return own if alike else sorted(manifest.parts)

    if rig.detached:
        folder = folder / str(rig.process_name)
        _require_comeback(rig, folder)
        found, newer = newest_common_checkpoint(folder, wanted, lambda value: [value])
    else:
        found, newer = newest_common_checkpoint(folder, wanted, rig.gather)
    manifest, first = found.manifest, next(iter(found.parts.values()))
    require_same_setup(manifest, rig.setup)
    rig.prepare(first["sample"])
    assert rig.engine is not None
    exact = manifest.stages == rig.parameter_names and manifest.replicas == rig.replicas
    if exact:
        states = [found.parts[name] for name in own]
        require_matching_stages(rig.engine.stages, states)
        rig.engine.load_state_dict(states)
    elif not isinstance(rig.engine, SerialEngine | DistributedEngine):
        raise CheckpointError(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training, and stages that run freely go on only as they were cut, as each has "
            "come to turns of its own; cut as it was"
        )
    else:
        states = []
        found = open_checkpoint(found.folder, lambda manifest: sorted(manifest.parts))
        reshard(rig.engine, rig.network, found, manifest.course["epoch"])
    if rig.is_main or rig.detached:
        warn_of_changes(found, exact, newer)
    course = FitState()
    tallies = [state["course"]["tally"] for state in states]
    course.load_state_dict(manifest.course, first["course"], tallies)
    note = first["note"] if exact or rig.is_main else None
    return course, ResumePoint(
        epoch=course.epoch,
        batch=course.batches,
        note=note,
        history=tuple(course.history),
        tick=manifest.tick,
    )


def _require_comeback(rig: Session, own: Path) -> None:
    """Refuse to be alone in beginning anew: the others have gone on from its first turns."""
    if rig.world is not None and rig.world.rejoined and not newest_first(own):
        raise PeerLostError(
            f"{rig.world.name} was started again alone, but was killed before its first "
            "checkpoint; start the whole job again"
        )
