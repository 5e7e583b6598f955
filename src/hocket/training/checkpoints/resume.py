"""Checkpoints of a training, restored into its session and its fit state."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, starmap
from pathlib import Path
from typing import Any

from hocket.checkpoint import Manifest
from hocket.checkpoint.directory import newest_first
from hocket.distributed.failures.phases import Phase
from hocket.engine.engine import LockstepEngine
from hocket.errors import CheckpointError, HocketError, PeerLostError
from hocket.stage.weight_copies.forward_state import frozen_weights, only_frozen
from hocket.training.callback import CallbackList
from hocket.training.checkpoints.find_and_load import (
    ResumePoint,
    callback_tensors,
    newest_common_checkpoint,
    open_checkpoint,
    part_name,
    require_matching_stages,
    resharded,
    warn_of_changes,
)
from hocket.training.fit_state import FitState
from hocket.training.session.agreement import (
    require_same_setup,
    settings_of,
    warn_of_changed_choices,
)
from hocket.training.session.session import Session


def _all_parts(manifest: Manifest) -> list[str]:
    """Return the names of all parts, beginning with the first replica's."""
    return sorted(manifest.parts, key=lambda name: ("replica" in name, name))


def resume_from(session: Session, folder: Path) -> tuple[FitState, ResumePoint]:
    """Restore the newest complete checkpoint of a folder, or a given one.

    Raises:
        CheckpointError: There is none, or it is of another training; nothing has been changed.
        PeerLostError: There is none yet, and this process was started again, alone.
        HocketError: The session has trained already.
    """
    if session.engine.tick_count:
        raise HocketError("this trainer has trained already; resume with a new one")
    # Find the newest checkpoint that all processes can read.
    count, network, world = session.cut.count, session.cut.network, session.world
    local_parts = list(starmap(part_name, world.local_stages(count)))

    def wanted(manifest: Manifest) -> Iterable[str]:
        alike = (len(manifest.stages), manifest.replicas) == (count, world.replicas)
        return local_parts if alike else _all_parts(manifest)

    gather: Callable[[Any], list[Any]] = partial(world.gather, purpose=Phase.RESUMING)
    if session.detached:
        folder, gather = folder / str(world.process_name), lambda value: [value]
        # The other stages have trained on from the first turns, so it cannot begin again alone.
        if world.rejoined and not newest_first(folder):
            raise PeerLostError(
                f"stage {world.stage} was started again alone, but was killed before its first "
                "checkpoint; start the whole job again"
            )
    snapshot, newer = newest_common_checkpoint(folder, wanted, gather)
    # Refuse another training. Build its stages, with optimizers for weights frozen since.
    manifest, first = snapshot.manifest, next(iter(snapshot.parts.values()))
    require_same_setup(manifest, session.setup)
    own = [name for part in snapshot.parts.values() for name in part["trained"]]
    trained = world.gather(own, Phase.RESUMING)
    with only_frozen(network, set(frozen_weights(network)).difference(*trained)):
        session.prepare(first["sample"], whole=True, resumes=True)
    here = session.cut.parameter_names, world.replicas
    engine, exact = session.engine, (manifest.stages, manifest.replicas) == here
    # Prepare to load the states of the same stages, or to reshard other stages.
    if exact:
        states = [snapshot.parts[name] for name in local_parts]
        # All replicas have the weights that the first one has names for.
        pairs = list(zip(cycle(engine.stages), states, strict=False))
        require_matching_stages(pairs, network)
        for stage, was in pairs:
            warn_of_changed_choices(stage, was, settings_of(stage, network, session.setup.loss))
        load: Callable[[], None] = partial(engine.load_state_dict, states)
    elif not isinstance(engine, LockstepEngine):
        raise CheckpointError(
            f"the {len(manifest.stages)} stages of the checkpoint are not those of this "
            "training, and stages that run freely can only continue as they were cut, as each "
            "has done a different number of turns; use the same cut"
        )
    else:
        snapshot = open_checkpoint(snapshot.folder, _all_parts)
        states = list(snapshot.parts.values())
        load = resharded(engine, network, snapshot)
    if world.is_main or session.detached:
        warn_of_changes(snapshot, exact, newer)
    # Restore the state of the fit, and what callbacks have kept.
    state = FitState()
    meters = [stage_state["fit"]["meter"] for stage_state in states if exact]
    state.load_state_dict(manifest.fit, first["fit"], meters)
    if not exact:
        state.ungathered = 0  # other stages begin with the gradients of a new update
    first_replica = states[: len(engine.stages)] if exact else states
    tensors = {s.index: callback_tensors(s, network, first_replica) for s in engine.stages}
    state.callbacks = CallbackList((), manifest.fit["callbacks"], tensors)
    # Load at last, so that no other error leaves a part of the checkpoint.
    session.half_loaded = True  # until the caller has the state of the fit
    load()
    session.checkpoint_folders.add(snapshot.folder.parent.resolve())  # it is this training's
    return state, ResumePoint(
        epoch=state.epoch,
        batch=state.batches,
        note=first["note"] if exact or world.is_main else None,
        notes=tuple(part["note"] for part in snapshot.parts.values()),
        history=tuple(state.history),
        tick=manifest.tick,
        updates=state.updates,
    )
