"""Checkpoints of a training: written from its session and fit state, and restored into them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from hocket.checkpoint import Checkpoints, CheckpointWriter, Manifest
from hocket.checkpoint.directory import checkpoint_name, newest_first
from hocket.distributed.failures.phases import Phase
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.engine import LockstepEngine
from hocket.errors import CheckpointError, HocketError, OptionError, PeerLostError
from hocket.training.callback import CallbackList
from hocket.training.checkpoints.state import (
    ResumePoint,
    callback_tensors,
    newest_common_checkpoint,
    open_checkpoint,
    part_name,
    require_matching_stages,
    reshard,
    reshard_names,
    warn_of_changes,
    warn_of_unsaved,
)
from hocket.training.fit_state import FitState
from hocket.training.session.choices import (
    require_same_setup,
    settings_of,
    setup_choices,
    warn_of_changed_choices,
)
from hocket.training.session.session import Session
from hocket.version import __version__

SaveCheckpoint: TypeAlias = Callable[[int | None], None]
"""Leaves a checkpoint: at once if given None, or if one is due after this number of ticks."""


@contextmanager
def saving(
    checkpoints: Checkpoints | None,
    session: Session,
    state: FitState,
    train: object,
    on_complete: Callable[[Path], None] = lambda folder: None,
) -> Iterator[SaveCheckpoint]:
    """Context manager that gives a function for checkpoints; at its end they are on disk.

    Args:
        checkpoints: Folder and interval; None to leave no checkpoints.
        session: Network, stages, engine and world.
        state: Epochs and batches that are done.
        train: The training data, whose position and RNG state are kept.
        on_complete: Called in all processes with the folder of each checkpoint that is
            complete, between two ticks: soon after, and before the next one is begun.

    Raises:
        CheckpointError: One cannot be written, and the training is to stop for that; or the
            folder belongs to another training.
        OptionError: The stages do not keep what a checkpoint needs.
        HocketError: No batch has been seen yet.
    """
    if checkpoints is None:
        yield lambda ticks: None
        return
    # Refuse a training that cannot be resumed, and warn of what is not kept.
    if not session.setup.resumable:
        raise OptionError(
            "checkpoints need what was in flight; build the trainer with resumable=True"
        )
    if session.world.is_main:
        warn_of_unsaved(session.setup.loss, session.cut.network)
    # Choose folder and processes; a detached stage saves alone, after its own ticks.
    world = session.world
    if session.detached:
        folder = Path(checkpoints.folder) / str(world.process_name)
        checkpoints, world = replace(checkpoints, folder=folder), SoloWorld()
        # A job that begins anew, as a stage had no checkpoint, finds checkpoints of others.
        session.checkpoint_folders.add(folder)
    # Claim the folder, and write until the training ends; then wait for the last checkpoint.
    with ExitStack() as claim:
        with session.world.in_phase(Phase.SAVING):
            _claim_folder(session, world, Path(checkpoints.folder), claim)
            writer = CheckpointWriter(checkpoints, world)
        saver = _Saver(writer, checkpoints, session, state, train, on_complete)
        try:
            yield saver.save
            with session.world.in_phase(Phase.SAVING):
                writer.wait()
                session.world.gather(None)  # it is sealed for all
            saver.settle()
        except BaseException as error:
            # After a failure of another process this one does not wait for the others.
            if world.size == 1 or isinstance(error, KeyboardInterrupt):
                saver.settle()
            raise
        finally:
            writer.close()


def _claim_folder(
    session: Session, world: World | SoloWorld, folder: Path, claim: ExitStack
) -> None:
    """Claim the folder of checkpoints for the training of some processes.

    Args:
        session: The training.
        world: The processes that write checkpoints together.
        folder: The folder.
        claim: Holds the claim of the main process.

    Raises:
        CheckpointError: The folder belongs to another training, in all processes.
    """
    problem = ""
    if world.is_main:
        try:
            claim.enter_context(session.checkpoint_folders.claim(folder))
        except CheckpointError as error:
            problem = str(error)
    if problem := "".join(world.gather(problem)):
        raise CheckpointError(problem)


@dataclass(eq=False)
class _Saver:
    """Writes the checkpoints that are due, and tells of those that are complete.

    Attributes:
        writer: Writer of the checkpoints.
        checkpoints: Their interval and their note.
        session: Network, stages, engine and world.
        state: Epochs and batches that are done.
        train: The training data.
        on_complete: Called with the folder of each that is complete.
    """

    writer: CheckpointWriter
    checkpoints: Checkpoints
    session: Session
    state: FitState
    train: object
    on_complete: Callable[[Path], None]

    def __post_init__(self) -> None:
        self._asked = self.session.engine.tick_count

    def save(self, ticks: int | None) -> None:
        """Leave a checkpoint: at once if given None, or if one is due after so many ticks."""
        writer, world = self.writer, self.session.world
        # Wait for the checkpoint before, if one is due.
        due = ticks is None or writer.is_due(ticks, self._asked)
        self._asked = self._asked if ticks is None else ticks
        if due:
            with world.in_phase(Phase.SAVING):
                writer.wait()
        # Tell of it first: what is done with it is in the state that the next one keeps.
        self._tell()
        if due:
            note = self.checkpoints.note() if self.checkpoints.note else None
            with world.in_phase(Phase.SAVING):
                self._write(note)

    def _write(self, note: Any) -> None:
        writer, session, state = self.writer, self.session, self.state
        engine, replica = session.engine, session.world.replica
        # Refuse a state that is not one, and leave out one that is saved already.
        if not session.prepared:
            raise HocketError("there is nothing to save before the first batch")
        if (name := checkpoint_name(engine.tick_count, state.epoch)) == writer.last_name:
            return
        session.ticks.require_whole()
        session.ticks.look()
        # Collect the state of each stage, and of the training as a whole.
        parts = {
            part_name(stage.index, replica): stage_state
            | reshard_names(stage, session.cut.network)
            | {
                "fit": state.state_dict(stage.index, self.train),
                "note": note,
                "sample": session.sample,
                "callbacks": state.callbacks.stage_tensors(stage),
                "settings": settings_of(stage, session.cut.network, session.setup.loss),
            }
            for stage, stage_state in zip(engine.stages, engine.state_dict(), strict=True)
        }
        manifest = Manifest(
            tick=engine.tick_count,
            stages=session.cut.parameter_names,
            replicas=session.world.replicas,
            setup=setup_choices(session.setup),
            versions={"torch": torch.__version__, "hocket": __version__},
            threads=torch.get_num_threads(),
            fit=state.summary(),
            parts={},
        )
        # Write them, with a reason if a checkpoint of such weights is of no use.
        faults = [(s.index, fault) for s in engine.stages if (fault := s.persistent_fault())]
        writer.save(
            name, parts, manifest, "; ".join(f"stage {k}: the {what}" for k, what in faults)
        )

    def settle(self) -> None:
        """Wait until the last checkpoint is complete, or never will be."""
        with self.session.world.in_phase(Phase.SAVING):
            self.writer.wait()
            self.writer.settle()
        self._tell()

    def _tell(self) -> None:
        for path in self.writer.take_complete():
            with self.session.world.in_phase(Phase.SAVING):
                self.on_complete(path)


def resume_from(session: Session, folder: Path) -> tuple[FitState, ResumePoint]:
    """Restore the newest complete checkpoint of a folder, or a given one.

    Args:
        session: Network, stages, engine and world; nothing has trained yet.
        folder: One checkpoint, or a folder of checkpoints.

    Raises:
        CheckpointError: There is none, or it is of another training; nothing has been changed.
        PeerLostError: There is none yet, and this process was started again, alone.
        HocketError: The session has trained already.
    """
    if session.engine.tick_count:
        raise HocketError("this trainer has trained already; resume with a new one")
    # Find the newest checkpoint that all processes can read.
    count, world = session.cut.count, session.world
    local_parts = [part_name(stage, world.replica) for stage in world.local_stages(count)]

    def wanted(manifest: Manifest) -> Iterable[str]:
        alike = (len(manifest.stages), manifest.replicas) == (count, world.replicas)
        return local_parts if alike else sorted(manifest.parts)

    if session.detached:
        folder = folder / str(world.process_name)
        _require_rejoinable(session, folder)
        snapshot, newer = newest_common_checkpoint(folder, wanted, lambda value: [value])
    else:
        snapshot, newer = newest_common_checkpoint(folder, wanted, world.gather)
    session.checkpoint_folders.add(snapshot.folder.parent)
    # Refuse another training, and build the stages for the inputs of the checkpoint.
    manifest, first = snapshot.manifest, next(iter(snapshot.parts.values()))
    require_same_setup(manifest, session.setup)
    session.prepare(first["sample"], whole=True, resumes=True)
    engine = session.engine
    here = session.cut.parameter_names, world.replicas
    exact = (manifest.stages, manifest.replicas) == here
    # Load the states of the same stages, or reshard other stages.
    if exact:
        states = [snapshot.parts[name] for name in local_parts]
        require_matching_stages(engine.stages, states, session.cut.network)
        for stage, stage_state in zip(engine.stages, states, strict=True):
            now = settings_of(stage, session.cut.network, session.setup.loss)
            warn_of_changed_choices(stage, stage_state, now)
        engine.load_state_dict(states)
    elif not isinstance(engine, LockstepEngine):
        raise CheckpointError(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training, and stages that run freely can only continue as they were cut, as each "
            "has done a different number of turns; use the same cut"
        )
    else:
        snapshot = open_checkpoint(snapshot.folder, lambda manifest: sorted(manifest.parts))
        states = list(snapshot.parts.values())
        reshard(engine, session.cut.network, snapshot, manifest.fit["epoch"])
    if world.is_main or session.detached:
        warn_of_changes(snapshot, exact, newer)
    # Load the state of the fit, and what callbacks have kept.
    state = FitState()
    meters = [stage_state["fit"]["meter"] for stage_state in states if exact]
    state.load_state_dict(manifest.fit, first["fit"], meters)
    if not exact:
        state.ungathered = 0  # other stages begin with the gradients of a new update
    tensors = {s.index: callback_tensors(s, session.cut.network, states) for s in engine.stages}
    state.callbacks = CallbackList((), manifest.fit["callbacks"], tensors)
    note = first["note"] if exact or world.is_main else None
    notes = tuple(part["note"] for part in snapshot.parts.values())
    return state, ResumePoint(
        epoch=state.epoch,
        batch=state.batches,
        note=note,
        notes=notes,
        history=tuple(state.history),
        tick=manifest.tick,
        updates=state.updates,
    )


def _require_rejoinable(session: Session, folder: Path) -> None:
    """Refuse to begin again alone: the other stages have trained on from the first turns.

    Raises:
        PeerLostError: This stage was started again alone, and has no checkpoint.
    """
    world = session.world
    if world.rejoined and not newest_first(folder):
        raise PeerLostError(
            f"stage {world.stage} was started again alone, but was killed before its first "
            "checkpoint; start the whole job again"
        )
