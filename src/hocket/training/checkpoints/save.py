"""Checkpoints of a training, written from its session and its fit state."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from hocket.checkpoint import Checkpoints, CheckpointWriter, Manifest
from hocket.checkpoint.directory import checkpoint_name, claim_folder
from hocket.distributed.failures.phases import Phase
from hocket.distributed.world.solo_world import SoloWorld
from hocket.errors import CheckpointError, HocketError, OptionError, warn
from hocket.training.checkpoints.find_and_load import part_name, trained_names
from hocket.training.fit_state import FitState
from hocket.training.session.agreement import settings_of, setup_choices
from hocket.training.session.cut_network import parameter_names
from hocket.training.session.session import Session
from hocket.version import __version__

SaveCheckpoint: TypeAlias = Callable[[int | None], None]
"""Leaves a checkpoint: at once if given None, or if one is due after this number of ticks."""


def require_checkpoints(checkpoints: object) -> None:
    """Refuse anything but Checkpoints.

    Raises:
        OptionError: It is something else.
    """
    if not isinstance(checkpoints, Checkpoints):
        raise OptionError(f"checkpoints is {checkpoints!r}; give hocket.Checkpoints(folder)")


@contextmanager
def saving(
    checkpoints: Checkpoints | None,
    session: Session,
    state: FitState,
    on_complete: Callable[[Path], None] = lambda folder: None,
) -> Iterator[SaveCheckpoint]:
    """Context manager that gives a function for checkpoints; at its end they are on disk.

    Args:
        checkpoints: Folder and interval; None to leave no checkpoints.
        session: Network, stages, engine and world.
        state: Epochs and batches that are done.
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
    with session.reporting_failures(), ExitStack() as claim:
        # Refuse a training that cannot be resumed, and warn of what is not kept.
        if not session.setup.resumable:
            raise OptionError(
                "checkpoints need what was in flight; build the trainer with resumable=True"
            )
        if session.world.is_main:
            _warn_of_unsaved(session.setup.loss, session.cut.network)
        # Choose folder and processes; a detached stage saves alone, after its own ticks.
        world, folder = session.world, Path(checkpoints.folder).absolute()  # despite a chdir
        if session.detached:
            folder, world = folder / str(world.process_name), SoloWorld()
            # A job that begins anew, as a stage had no checkpoint, finds checkpoints of others.
            session.checkpoint_folders.add(folder.resolve())
        # Claim the folder.
        checkpoints = replace(checkpoints, folder=folder)
        with session.world.in_phase(Phase.SAVING):
            problem = ""
            if world.is_main:
                try:
                    claim.enter_context(claim_folder(folder, session.checkpoint_folders))
                except CheckpointError as error:
                    problem = str(error)
            if problem := "".join(world.gather(problem, Phase.SAVING)):  # in all processes
                raise CheckpointError(problem)
            writer = CheckpointWriter(checkpoints, world)
        # Write until the training ends; then wait for the last checkpoint.
        saver = _Saver(writer, checkpoints, session, state, on_complete)
        try:
            yield saver.save
            with session.world.in_phase(Phase.SAVING):
                writer.wait()
                session.world.gather(None, Phase.SAVING)  # it is sealed for all
            saver.settle()
        except BaseException as error:
            # After a failure of another process this one does not wait for the others.
            if world.size == 1 or isinstance(error, KeyboardInterrupt):
                saver.settle()
            raise


@dataclass(eq=False)
class _Saver:
    """Writes the checkpoints that are due, and tells of those that are complete."""

    writer: CheckpointWriter
    checkpoints: Checkpoints
    session: Session
    state: FitState
    on_complete: Callable[[Path], None]

    def __post_init__(self) -> None:
        self._asked = self.session.engine.tick_count

    def save(self, ticks: int | None) -> None:
        """Leave a checkpoint: at once if given None, or if one is due after so many ticks."""
        writer, world, every = self.writer, self.session.world, self.checkpoints.every
        # Wait for the checkpoint before, if one is due; a batch can take several ticks.
        due = ticks is None or (every > 0 and ticks // every > self._asked // every)
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
        engine, network = session.engine, session.cut.network
        # Refuse a state that is not one, and leave out one that is saved already.
        if not session.prepared:
            raise HocketError("there is nothing to save before the first batch")
        if (name := checkpoint_name(engine.tick_count, state.epoch)) == writer.last_name:
            return
        session.ticks.require_whole()
        session.ticks.look()
        # Collect the state of each stage, and of the training as a whole. Replicas in this
        # process have the names and the meter of the first one.
        places = session.world.local_stages(session.cut.count)
        states = zip(places, cycle(engine.stages), engine.state_dict(), strict=False)
        parts = {
            part_name(*place): stage_state
            | {
                # Names with which the state can continue in stages cut elsewhere.
                "names": parameter_names(network, stage.module, stage.index),
                "trained": trained_names(stage, network),
                "fit": state.state_dict(stage.index, metered=number < len(engine.stages)),
                "note": note,
                "sample": session.sample,
                "callbacks": state.callbacks.stage_tensors(stage),
                "settings": settings_of(stage, network, session.setup.loss),
            }
            for number, (place, stage, stage_state) in enumerate(states)
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
        faults = [
            (s.index, fault) for s in engine.all_stages if (fault := s.persistent_fault())
        ]
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


def _warn_of_unsaved(loss: object, network: nn.Module) -> None:
    """Warn of what a checkpoint leaves out."""
    parts = loss.modules() if isinstance(loss, nn.Module) else ()
    names = [
        f"buffer {name!r} of the loss"
        for part in parts
        if not getattr(type(part), "forward", nn.Module).__module__.startswith("torch.nn.")
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    ] + [
        f"the extra state of layer {name!r}"
        for name, layer in network.named_modules()
        if type(layer).get_extra_state is not nn.Module.get_extra_state
    ]
    if names:
        warn(
            f"checkpoints leave out {', '.join(names)}, so that a training that is resumed "
            "begins with it as it is then; keep it in buffers of the network",
        )
