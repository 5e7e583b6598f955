"""One training from a run: data, network, trainer, run folder, and the end in good order."""

import dataclasses
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket import data as datasets
from hocket.distributed import identity
from hocket.checkpoint import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.transport.codecs import codec_of
from hocket.engine.gradient_error import Comparison
from hocket.engine.event import Event
from hocket.runs.environment import environment
from hocket.errors import HocketError, NonFiniteError, OptionError, RunFolderError
from hocket.training.metrics import Epoch
from hocket.runs.metrics_log import Logs, tensorboard_writer
from hocket.methods.method import Method
from hocket.options import Named
from hocket.runs.build import (
    method_of,
    network_name,
    network_of,
    optimizer_of,
    plan_of,
    rates_of,
    scheduler_of,
)
from hocket.runs.skipped_batches import Restore, note, skipped_in
from hocket.runs.config import Run, publish
from hocket.training.state import Position
from hocket.stage.stage import Stage
from hocket.runs.summary import StageSummary, Summary, row_of, rows_of
from hocket.timeline import Timeline
from hocket.training.trainer import Trainer


def train(run: Run, *, resume: bool = False) -> Summary:
    """Train as the run says, in a new run folder, or as far as it came in its own.

    Whatever ends the training, the network as it was reached is saved: Ctrl-C gives the state
    ``interrupted``; an error gives ``failed``, and is raised after that. Among several
    processes the first one writes the folder, and each adds the metrics of its stage; after an
    error each saves its own stage, as the others cannot be asked any more.

    Args:
        run: Everything that it needs.
        resume: Whether to go on in the run's folder, from its last checkpoint if it has any.

    Raises:
        HocketError: The run is impossible, or something became NaN or infinite.
        Restore: The same, and the batch at which it did is noted for another start.
    """
    method = method_of(run.method).with_extra_delay(run.slack)
    made: dict[str, Any] = {
        "method": method,
        "stages": plan_of(run),
        "optimizer": optimizer_of(run),
        "scheduler": scheduler_of(run),
        "rates": rates_of(run),
    }
    _require_device(run.device)
    if run.non_finite == "restore" and method.replay is not None:
        raise OptionError(
            f"non_finite is 'restore', but the stages of method {run.method!r} run freely, and "
            "number their batches each for itself; use 'skip'"
        )
    if run.tensorboard:
        tensorboard_writer()
    if int(os.environ.get("RANK", "0")) == 0 and not resume:
        _require_new(run.out)
    if run.threads:
        torch.set_num_threads(run.threads)
    chosen = Named.parse(run.data)
    data = datasets.load(
        chosen.name,
        data_dir=run.data_dir,
        batch_size=run.batch_size,
        seed=run.seed,
        **chosen.options,
    )
    late = _Late()
    skipping = skipped_in(run.out) if resume and run.out is not None else []
    trainer = _trainer(run, network_of(run, data), made, late, skipping)
    at = None
    if run.out is not None and identity.returned():  # the others are out, and have tried it
        folder, at = run.out, trainer.resume(_checkpoints(run.out))
    else:
        _try(trainer, data, run)
        if resume and run.out is not None:
            at = _resumed(trainer, run.out, run.stages)
        new = trainer.leads and not (resume and run.out is not None and run.out.exists())
        folder = Path(trainer.gather(str(_new_folder(run) if new else run.out))[0])
    begun = _timeline_before(run, at)
    run = dataclasses.replace(run, out=folder)
    if trainer.leads:
        run.write(folder / "run.json")
        publish(folder / "environment.json", environment())
    else:
        folder.mkdir(parents=True, exist_ok=True)  # on another machine
    part = None if trainer.leads else trainer.part
    after = at.note if at is not None else None
    board = run.tensorboard
    with Logs(folder, run.log_every, tensorboard=board, part=part, after=after) as logs:
        late.logs = logs
        return _fit(run, trainer, data, method, folder, logs, at.history if at else (), begun)


def _trainer(
    run: Run, network: nn.Module, made: dict[str, Any], late: "_Late", skipping: Sequence[int]
) -> Trainer:
    """A trainer as the run says, with the parts that were made of its words."""
    return Trainer(
        network,
        **made,
        scheduler_per=run.scheduler_per,
        seed=run.seed,
        device=run.device,
        precision=run.precision,
        channels_last=run.channels_last,
        watchers=[late.watch],
        compare_every=run.compare_every,
        on_comparison=late.comparison if run.compare_every else None,
        replicas=run.replicas,
        codec=codec_of(run.codec),
        turns=run.turns,
        batchnorm=run.batchnorm,
        timeout_s=run.timeout_s,
        checksum=run.checksum,
        trace=run.trace is not None,
        resumable=run.checkpoint_every > 0,
        non_finite="skip" if run.non_finite == "skip" else "stop",
        skipping=skipping,
    )


def _try(trainer: Trainer, data: datasets.Data, run: Run) -> None:
    """Build the stages and evaluate a batch, so that misfits show before anything is written.

    Raises:
        OptionError: The network does not take the data.
    """
    batch = next(data.test.serve(0))
    try:
        trainer.evaluate([batch])
    except (RuntimeError, IndexError, TypeError) as error:
        if isinstance(error, HocketError):
            raise
        raise OptionError(
            f"the network {run.network!r} does not take the data {run.data!r}, whose inputs "
            f"have the shape {data.shape} and whose classes number {data.classes}: {error}"
        ) from error


class _Late:
    """Passes on to the logs, which exist only once the run folder does."""

    logs: Logs

    def watch(self, event: Event, stage: Stage) -> None:
        self.logs.watch(event, stage)

    def comparison(self, comparison: Comparison) -> None:
        self.logs.comparison(comparison)


def has_checkpoints(folder: Path, stages: int) -> bool:
    """Whether a run has left in its folder what all of its stages can go on from."""
    place = _checkpoints(folder)
    own = [place / f"stage{k}" for k in range(stages)]
    return bool(newest_first(place)) or all(map(newest_first, own))


def _resumed(trainer: Trainer, folder: Path, stages: int) -> Position | None:
    """Go on from the last checkpoint of a run, if all stages can; where that is."""
    if any(trainer.gather(has_checkpoints(folder, stages))):
        return trainer.resume(_checkpoints(folder))
    if trainer.leads and _checkpoints(folder).exists():
        # Some stages had left their first ones when another was killed that had none.
        shutil.rmtree(_checkpoints(folder))
    return None


def _checkpoints(folder: Path) -> Path:
    """Where those of a run are."""
    return folder / "checkpoints"


def _fit(
    run: Run,
    trainer: Trainer,
    data: datasets.Data,
    method: Method,
    folder: Path,
    logs: Logs,
    before: Sequence[Epoch],
    begun: Timeline,
) -> Summary:
    epochs = list(before)
    start = time.perf_counter()

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        if trainer.leads:
            logs.epoch(epoch)

    def end(state: str, message: str, rows: Sequence[StageSummary], number: int = 0) -> Summary:
        seconds = sum(epoch.seconds for epoch in epochs) or time.perf_counter() - start
        summary = Summary(
            state=state,
            message=message,
            folder=folder,
            epochs=tuple(epochs),
            seconds=seconds,
            samples_per_s=sum(epoch.samples for epoch in epochs) / seconds,
            stages=tuple(rows),
            cuts=trainer.plan.cuts if trainer.plan else (),
            signal=number,
        )
        if trainer.leads:
            publish(folder / "summary.json", dataclasses.asdict(summary))
        return summary

    def end_together(state: str, message: str = "", number: int = 0) -> Summary:
        trainer.collect()
        if trainer.leads:
            _save(trainer.network, folder / "network.pt")
        _write_timeline(trainer, run.trace, begun)
        own = [dataclasses.asdict(row) for row in rows_of(trainer, method, epochs)]
        rows = [row for rows in trainer.gather(own)[:: run.replicas] for row in rows]
        return end(state, message, [row_of(**row) for row in rows], number)

    try:
        trainer.fit(
            data.train,
            data.test,
            epochs=run.epochs,
            on_epoch=on_epoch,
            checkpoints=_checkpoints_of(run, folder, logs),
        )
    except KeyboardInterrupt as stop:
        number = int(stop.args[0]) if stop.args else int(signal.SIGINT)
        where = f"stopped in epoch {len(epochs) + 1} of {run.epochs}"
        return end_together("interrupted", where, number)
    except Exception as error:
        _save_part(trainer, folder)
        message = "\n".join([str(error), *getattr(error, "__notes__", [])])
        end("failed", message, rows_of(trainer, method, epochs))
        if isinstance(error, NonFiniteError) and run.non_finite == "restore":
            raise _going_back(error, run, folder) from error
        error.add_note(f"what was reached is in {folder}")
        raise
    return end_together("finished")


def _going_back(error: NonFiniteError, run: Run, folder: Path) -> Restore:
    """What asks for another start from the last checkpoint.

    Raises:
        NonFiniteError: There is none, or it would not help.
    """
    if not has_checkpoints(folder, run.stages):
        raise NonFiniteError(f"{error}; there is no checkpoint yet to go back to") from error
    return note(folder, error, run.max_restores)


def _checkpoints_of(run: Run, folder: Path, logs: Logs) -> Checkpoints | None:
    """When and where the run leaves checkpoints, if it does."""
    if not run.checkpoint_every:
        return None
    return Checkpoints(
        _checkpoints(folder),
        every=run.checkpoint_every,
        keep=run.checkpoint_keep,
        on_failure=run.checkpoint_failure,
        note=logs.written,
    )


def _timeline_before(run: Run, at: Position | None) -> Timeline:
    """What a run that is resumed has written of its own time before the checkpoint."""
    file = run.trace
    if at is None or run.out is None or file is None or not file.exists():
        return Timeline(())
    own = Run.read(run.out / "run.json").trace == file
    return Timeline.read(file).until(at.tick) if own else Timeline(())


def _write_timeline(trainer: Trainer, file: Path | None, before: Timeline) -> None:
    if file is not None:
        timeline = trainer.timeline()
        if trainer.leads:
            before.then(timeline).write(file)


def _save_part(trainer: Trainer, folder: Path) -> None:
    """What this process has of the network."""
    if trainer.part is None:
        _save(trainer.network, folder / "network.pt")
    else:
        _save(trainer.stages[0].module, folder / f"network.{trainer.part}.pt")


def _save(network: nn.Module, file: Path) -> None:
    """The weights under the network's own names."""
    part = file.with_name(file.name + ".part")
    torch.save({k: v.cpu() for k, v in network.state_dict().items()}, part)
    part.replace(file)


def _require_device(device: str) -> None:
    available: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    kind, _, index = device.partition(":")
    if kind not in available or not (index.isdecimal() or device == kind):
        raise OptionError(f"device is {device!r}; use one of {', '.join(available)}, or cuda:1")
    if not available[kind]():
        raise OptionError(f"device is {device!r}, but PyTorch finds none here; use cpu")


def _require_new(folder: Path | None) -> None:
    if folder is not None and folder.exists():
        raise RunFolderError(
            f"the run folder {str(folder)!r} exists already; name another with --out, or move "
            "that one away"
        )


def _new_folder(run: Run) -> Path:
    """The run's folder, just made."""
    if run.out is not None:
        _require_new(run.out)
        return _made(run.out)
    return _made(folder_of(run))


def folder_of(run: Run) -> Path:
    """A folder under runs/ that is not there yet."""
    method, data = (Named.parse(words).name for words in (run.method, run.data))
    title = f"{method}{run.stages}-{network_name(run)}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"
    for n in itertools.count():
        folder = Path("runs") / (f"{title}-{n}" if n else title)
        if not folder.exists():
            break
    return folder


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = f"cannot make the run folder {str(folder)!r}: {error.strerror}"
        raise RunFolderError(f"{why}; name another with --out") from error
    return folder
