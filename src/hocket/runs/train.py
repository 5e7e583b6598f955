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
from hocket.transport.codecs import parse_codec
from hocket.engine.gradient_error import GradientError
from hocket.engine.event import Event
from hocket.runs.environment import environment
from hocket.errors import HocketError, NonFiniteError, OptionError, RunFolderError
from hocket.training.metrics import EpochResult
from hocket.runs.metrics_log import MetricsLog, tensorboard_writer
from hocket.methods.method import Method
from hocket.options import Named
from hocket.runs.build import (
    parse_method,
    network_name,
    build_network,
    build_optimizer,
    build_plan,
    parse_stage_speeds,
    build_scheduler,
)
from hocket.runs.skipped_batches import RestoreRequest, note_skipped_batch, read_skipped_batches
from hocket.runs.config import RunConfig, write_json
from hocket.training.state import ResumePoint
from hocket.stage.stage import Stage
from hocket.runs.summary import StageSummary, Summary, parse_stage_summary, summarize_stages
from hocket.timeline import Timeline
from hocket.training.trainer import Trainer


def train(run: RunConfig, *, resume: bool = False) -> Summary:
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
    method = parse_method(run.method).with_extra_delay(run.extra_delay)
    made: dict[str, Any] = {
        "method": method,
        "stages": build_plan(run),
        "optimizer": build_optimizer(run),
        "scheduler": build_scheduler(run),
        "stage_speeds": parse_stage_speeds(run),
    }
    _require_device(run.device)
    if run.on_nan == "restore" and method.replay is not None:
        raise OptionError(
            f"on_nan is 'restore', but the stages of method {run.method!r} run freely, and "
            "number their batches each for itself; use 'skip'"
        )
    if run.tensorboard:
        tensorboard_writer()
    if int(os.environ.get("RANK", "0")) == 0 and not resume:
        _require_new(run.run_dir)
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
    skipping = read_skipped_batches(run.run_dir) if resume and run.run_dir is not None else []
    trainer = _trainer(run, build_network(run, data), made, late, skipping)
    at = None
    if run.run_dir is not None and identity.has_rejoined():  # the others are out, and have tried it
        folder, at = run.run_dir, trainer.resume(_checkpoints(run.run_dir))
    else:
        _try(trainer, data, run)
        if resume and run.run_dir is not None:
            at = _resumed(trainer, run.run_dir, run.stages)
        new = trainer.is_main_process and not (resume and run.run_dir is not None and run.run_dir.exists())
        folder = Path(trainer.gather(str(_new_folder(run) if new else run.run_dir))[0])
    begun = _timeline_before(run, at)
    run = dataclasses.replace(run, run_dir=folder)
    if trainer.is_main_process:
        run.write(folder / "run.json")
        write_json(folder / "environment.json", environment())
    else:
        folder.mkdir(parents=True, exist_ok=True)  # on another machine
    part = None if trainer.is_main_process else trainer.process_name
    after = at.note if at is not None else None
    board = run.tensorboard
    with MetricsLog(folder, run.log_every, tensorboard=board, part=part, after=after) as logs:
        late.logs = logs
        return _fit(run, trainer, data, method, folder, logs, at.history if at else (), begun)


def _trainer(
    run: RunConfig, network: nn.Module, made: dict[str, Any], late: "_Late", skipping: Sequence[int]
) -> Trainer:
    """A trainer as the run says, with the parts that were made of its words."""
    return Trainer(
        network,
        **made,
        scheduler_unit=run.scheduler_unit,
        seed=run.seed,
        device=run.device,
        precision=run.precision,
        channels_last=run.channels_last,
        watchers=[late.watch],
        gradient_error_every=run.gradient_error_every,
        on_gradient_error=late.comparison if run.gradient_error_every else None,
        replicas=run.replicas,
        codec=parse_codec(run.codec),
        stage_timing=run.stage_timing,
        batchnorm=run.batchnorm,
        timeout_s=run.timeout_s,
        checksum=run.checksum,
        record_timeline=run.timeline is not None,
        resumable=run.checkpoint_every > 0,
        on_nan="skip" if run.on_nan == "skip" else "stop",
        skip_batches=skipping,
    )


def _try(trainer: Trainer, data: datasets.Data, run: RunConfig) -> None:
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

    logs: MetricsLog

    def watch(self, event: Event, stage: Stage) -> None:
        self.logs.watch(event, stage)

    def comparison(self, comparison: GradientError) -> None:
        self.logs.gradient_error(comparison)


def has_checkpoints(folder: Path, stages: int) -> bool:
    """Whether a run has left in its folder what all of its stages can go on from."""
    place = _checkpoints(folder)
    own = [place / f"stage{k}" for k in range(stages)]
    return bool(newest_first(place)) or all(map(newest_first, own))


def _resumed(trainer: Trainer, folder: Path, stages: int) -> ResumePoint | None:
    """Go on from the last checkpoint of a run, if all stages can; where that is."""
    if any(trainer.gather(has_checkpoints(folder, stages))):
        return trainer.resume(_checkpoints(folder))
    if trainer.is_main_process and _checkpoints(folder).exists():
        # Some stages had left their first ones when another was killed that had none.
        shutil.rmtree(_checkpoints(folder))
    return None


def _checkpoints(folder: Path) -> Path:
    """Where those of a run are."""
    return folder / "checkpoints"


def _fit(
    run: RunConfig,
    trainer: Trainer,
    data: datasets.Data,
    method: Method,
    folder: Path,
    logs: MetricsLog,
    before: Sequence[EpochResult],
    begun: Timeline,
) -> Summary:
    epochs = list(before)
    start = time.perf_counter()

    def on_epoch(epoch: EpochResult) -> None:
        epochs.append(epoch)
        if trainer.is_main_process:
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
        if trainer.is_main_process:
            write_json(folder / "summary.json", dataclasses.asdict(summary))
        return summary

    def end_together(state: str, message: str = "", number: int = 0) -> Summary:
        trainer.collect()
        if trainer.is_main_process:
            _save(trainer.network, folder / "network.pt")
        _write_timeline(trainer, run.timeline, begun)
        own = [dataclasses.asdict(row) for row in summarize_stages(trainer, method, epochs)]
        rows = [row for rows in trainer.gather(own)[:: run.replicas] for row in rows]
        return end(state, message, [parse_stage_summary(**row) for row in rows], number)

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
        end("failed", message, summarize_stages(trainer, method, epochs))
        if isinstance(error, NonFiniteError) and run.on_nan == "restore":
            raise _going_back(error, run, folder) from error
        error.add_note(f"what was reached is in {folder}")
        raise
    return end_together("finished")


def _going_back(error: NonFiniteError, run: RunConfig, folder: Path) -> RestoreRequest:
    """What asks for another start from the last checkpoint.

    Raises:
        NonFiniteError: There is none, or it would not help.
    """
    if not has_checkpoints(folder, run.stages):
        raise NonFiniteError(f"{error}; there is no checkpoint yet to go back to") from error
    return note_skipped_batch(folder, error, run.max_restores)


def _checkpoints_of(run: RunConfig, folder: Path, logs: MetricsLog) -> Checkpoints | None:
    """When and where the run leaves checkpoints, if it does."""
    if not run.checkpoint_every:
        return None
    return Checkpoints(
        _checkpoints(folder),
        every=run.checkpoint_every,
        keep=run.checkpoint_keep,
        on_error=run.on_checkpoint_error,
        note=logs.written,
    )


def _timeline_before(run: RunConfig, at: ResumePoint | None) -> Timeline:
    """What a run that is resumed has written of its own time before the checkpoint."""
    file = run.timeline
    if at is None or run.run_dir is None or file is None or not file.exists():
        return Timeline(())
    own = RunConfig.read(run.run_dir / "run.json").timeline == file
    return Timeline.read(file).until(at.tick) if own else Timeline(())


def _write_timeline(trainer: Trainer, file: Path | None, before: Timeline) -> None:
    if file is not None:
        timeline = trainer.timeline()
        if trainer.is_main_process:
            before.then(timeline).write(file)


def _save_part(trainer: Trainer, folder: Path) -> None:
    """What this process has of the network."""
    if trainer.process_name is None:
        _save(trainer.network, folder / "network.pt")
    else:
        _save(trainer.stages[0].module, folder / f"network.{trainer.process_name}.pt")


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
            f"the run folder {str(folder)!r} exists already; name another with --run-dir, or move "
            "that one away"
        )


def _new_folder(run: RunConfig) -> Path:
    """The run's folder, just made."""
    if run.run_dir is not None:
        _require_new(run.run_dir)
        return _made(run.run_dir)
    return _made(new_run_dir(run))


def new_run_dir(run: RunConfig) -> Path:
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
        raise RunFolderError(f"{why}; name another with --run-dir") from error
    return folder
