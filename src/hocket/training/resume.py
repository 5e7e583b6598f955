"""The checkpoints of a training: taken from its rig and course, and put back into them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from hocket.checkpoint import Checkpoints, Manifest, Saver
from hocket.checkpoint.directory import name_of, newest_first
from hocket.engine.distributed import Distributed
from hocket.engine.serial import Serial
from hocket.errors import CheckpointError, HocketError, LostError, OptionError
from hocket.training.fit_state import Course
from hocket.training.session import Rig
from hocket.training.state import (
    Position,
    agreed,
    described,
    manifest_of,
    open_at,
    part_name,
    require_alike,
    require_fitting,
    transfer,
    warn_of_changes,
)

Save: TypeAlias = Callable[[int | None], None]
"""Leaves a checkpoint: at once, or if one is due after so many ticks."""


@contextmanager
def saving(
    checkpoints: Checkpoints | None, rig: Rig, course: Course, train: object
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
    if rig.apart:  # each stage saves at its own turns
        own = checkpoints.folder / str(rig.part)
        checkpoints, world = replace(checkpoints, folder=own), None
    saver = Saver(checkpoints, world)

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


def _write(saver: Saver, rig: Rig, course: Course, train: object, note: Any) -> None:
    if rig.engine is None:
        raise HocketError("there is nothing to save before the first batch")
    if (name := name_of(rig.engine.now, course.epoch)) == saver.last:
        return
    parts = {
        part_name(stage.index, rig.replica): state
        | described(stage, rig.network)
        | {"course": course.state(stage.index, train), "note": note, "sample": rig.sample}
        for stage, state in zip(rig.engine.stages, rig.engine.state(), strict=True)
    }
    manifest = manifest_of(
        rig.engine.now, rig.setup, rig.layers, rig.replicas, course.summary()
    )
    faults = [(stage.index, fault) for stage in rig.engine.stages if (fault := stage.fault())]
    saver.save(name, parts, manifest, "; ".join(f"stage {k}: the {what}" for k, what in faults))


def resumed(rig: Rig, folder: Path) -> tuple[Course, Position]:
    """Put the newest checkpoint of a folder that is whole, or a given one, into a rig.

    Raises:
        CheckpointError: There is none, or it is of another training; nothing has been changed.
        LostError: There is none yet, and this process was started again, alone.
        HocketError: The rig has trained already.
    """
    if rig.engine is not None and rig.engine.now:
        raise HocketError("this trainer has trained already; resume with a new one")
    places = range(rig.count) if rig.world is None else [rig.world.stage]
    own = [part_name(stage, rig.replica) for stage in places]

    def wanted(manifest: Manifest) -> Iterable[str]:
        alike = (len(manifest.stages), manifest.replicas) == (rig.count, rig.replicas)
        return own if alike else sorted(manifest.parts)

    if rig.apart:
        folder = folder / str(rig.part)
        _require_comeback(rig, folder)
        found, newer = agreed(folder, wanted, lambda value: [value])
    else:
        found, newer = agreed(folder, wanted, rig.gather)
    manifest, first = found.manifest, next(iter(found.parts.values()))
    require_alike(manifest, rig.setup)
    rig.prepare(first["sample"])
    assert rig.engine is not None
    exact = manifest.stages == rig.layers and manifest.replicas == rig.replicas
    if exact:
        states = [found.parts[name] for name in own]
        require_fitting(rig.engine.stages, states)
        rig.engine.load(states)
    elif not isinstance(rig.engine, Serial | Distributed):
        raise CheckpointError(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training, and stages that run freely go on only as they were cut, as each has "
            "come to turns of its own; cut as it was"
        )
    else:
        states = []
        found = open_at(found.folder, lambda manifest: sorted(manifest.parts))
        transfer(rig.engine, rig.network, found, manifest.course["epoch"])
    if rig.leads or rig.apart:
        warn_of_changes(found, exact, newer)
    course = Course()
    tallies = [state["course"]["tally"] for state in states]
    course.load(manifest.course, first["course"], tallies)
    note = first["note"] if exact or rig.leads else None
    return course, Position(
        epoch=course.epoch,
        batch=course.batches,
        note=note,
        history=tuple(course.history),
        tick=manifest.tick,
    )


def _require_comeback(rig: Rig, own: Path) -> None:
    """Refuse to be alone in beginning anew: the others have gone on from its first turns."""
    if rig.world is not None and rig.world.returned and not newest_first(own):
        raise LostError(
            f"{rig.world.place} was started again alone, but was killed before its first "
            "checkpoint; start the whole job again"
        )
