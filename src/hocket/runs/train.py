"""One training from a configuration: data, network, trainer, run folder, and its end."""

import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.checkpoint import Checkpoints
from hocket.data import Data
from hocket.distributed import identity
from hocket.engine.event import Event
from hocket.engine.gradient_error import GradientError
from hocket.errors import HocketError, NonFiniteError, OptionError
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.runs.build import (
    build_network,
    build_optimizer,
    build_plan,
    build_scheduler,
    load_data,
    parse_stage_speeds,
)
from hocket.runs.config import RunConfig, write_json
from hocket.runs.environment import environment
from hocket.runs.metrics_log import MetricsLog, tensorboard_writer
from hocket.runs.run_dir import (
    checkpoint_dir,
    create_run_dir,
    has_checkpoints,
    require_new,
    save_weights,
)
from hocket.runs.skipped_batches import RestoreRequest, note_skipped_batch, read_skipped_batches
from hocket.runs.summary import StageSummary, Summary, parse_stage_summary, summarize_stages
from hocket.stage.stage import Stage
from hocket.timeline import Timeline
from hocket.training.metrics import EpochResult
from hocket.training.state import ResumePoint
from hocket.training.trainer import Trainer
from hocket.transport.codecs import parse_codec


def train(config: RunConfig, *, resume: bool = False) -> Summary:
    """Train in this process, in a new run folder, or continue in the one of the configuration.

    The weights reached are saved however the training ends: Ctrl-C gives the state
    ``interrupted``; an error gives ``failed`` and is raised after that. Among several processes
    the first one writes the folder and each adds the metrics of its stage; after an error each
    saves its own stage only, as it can no longer reach the others.

    Args:
        config: Choices of the training.
        resume: True to resume in the run folder, from its last checkpoint if there is any.

    Raises:
        HocketError: The configuration is impossible, or something became NaN or infinite.
        RestoreRequest: Something became NaN or infinite; its batch is noted to be skipped after
            a restart from the last checkpoint.
    """
    method = parse_method(config.method).with_extra_delay(config.extra_delay)
    parts: dict[str, Any] = {
        "method": method,
        "stages": build_plan(config),
        "optimizer": build_optimizer(config),
        "scheduler": build_scheduler(config),
        "stage_speeds": parse_stage_speeds(config),
    }
    _require_device(config.device)
    if config.on_nan == "restore" and method.free_running:
        raise OptionError(
            f"on_nan is 'restore', but the stages of method {config.method!r} run freely, and "
            "each numbers its own batches; use 'skip'"
        )
    if config.tensorboard:
        tensorboard_writer()
    if int(os.environ.get("RANK", "0")) == 0 and not resume:
        require_new(config.run_dir)
    if config.threads:
        torch.set_num_threads(config.threads)
    data = load_data(config)
    listener = _Listener()
    previous_dir = config.run_dir if resume else None
    skip_batches = read_skipped_batches(previous_dir) if previous_dir is not None else []
    network = build_network(config, data)
    trainer = _build_trainer(config, network, parts, listener, skip_batches)
    point = None
    if config.run_dir is not None and identity.has_rejoined():  # the others train already
        run_dir, point = config.run_dir, trainer.resume(checkpoint_dir(config.run_dir))
    else:
        _try_batch(trainer, data, config)
        if previous_dir is not None:
            point = _resume(trainer, previous_dir, config.stages)
        is_new = previous_dir is None or not previous_dir.exists()
        creates = trainer.is_main_process and is_new
        own_dir = create_run_dir(config) if creates else config.run_dir
        run_dir = Path(trainer.gather(str(own_dir))[0])
    timeline_before = _read_timeline(config, point)
    config = dataclasses.replace(config, run_dir=run_dir)
    if trainer.is_main_process:
        config.write(run_dir / "run.json")
        write_json(run_dir / "environment.json", environment())
    else:
        run_dir.mkdir(parents=True, exist_ok=True)  # on another machine
    with MetricsLog(
        run_dir,
        config.log_every,
        tensorboard=config.tensorboard,
        process=None if trainer.is_main_process else trainer.process_name,
        after=point.note if point is not None else None,
    ) as log:
        listener.log = log
        history = point.history if point is not None else ()
        training = _Training(config, trainer, method, run_dir, log, history, timeline_before)
        return training.run(data)


class _Listener:
    """Passes events on to the log, which is created after the trainer."""

    log: MetricsLog

    def on_event(self, event: Event, stage: Stage) -> None:
        self.log.watch(event, stage)

    def on_gradient_error(self, comparison: GradientError) -> None:
        self.log.gradient_error(comparison)


def _build_trainer(
    config: RunConfig,
    network: nn.Module,
    parts: dict[str, Any],
    listener: _Listener,
    skip_batches: Sequence[int],
) -> Trainer:
    """Build the trainer of a configuration from the parts that it names."""
    return Trainer(
        network,
        **parts,
        scheduler_unit=config.scheduler_unit,
        seed=config.seed,
        device=config.device,
        precision=config.precision,
        channels_last=config.channels_last,
        watchers=[listener.on_event],
        gradient_error_every=config.gradient_error_every,
        on_gradient_error=listener.on_gradient_error if config.gradient_error_every else None,
        replicas=config.replicas,
        codec=parse_codec(config.codec),
        stage_timing=config.stage_timing,
        batchnorm=config.batchnorm,
        timeout_s=config.timeout_s,
        checksum=config.checksum,
        record_timeline=config.timeline is not None,
        resumable=config.checkpoint_every > 0,
        on_nan="skip" if config.on_nan == "skip" else "stop",
        skip_batches=skip_batches,
    )


def _try_batch(trainer: Trainer, data: Data, config: RunConfig) -> None:
    """Build the stages and evaluate a batch, so that errors show before anything is written.

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
            f"the network {config.network!r} does not take the data {config.data!r}, whose "
            f"inputs have the shape {data.shape} and which has {data.classes} classes: {error}"
        ) from error


def _resume(trainer: Trainer, run_dir: Path, stages: int) -> ResumePoint | None:
    """Resume from the last checkpoint of a run; None if not all stages have one."""
    if any(trainer.gather(has_checkpoints(run_dir, stages))):
        return trainer.resume(checkpoint_dir(run_dir))
    if trainer.is_main_process and checkpoint_dir(run_dir).exists():
        # Some stages had written their first one when another was killed that had none.
        shutil.rmtree(checkpoint_dir(run_dir))
    return None


class _Training:
    """The fit of a trainer with what it leaves in the run folder.

    Args:
        config: Choices of the training.
        trainer: The trainer, new or resumed.
        method: Method of the trainer.
        run_dir: The run folder.
        log: Log of metrics.
        history: Results of the epochs before it was resumed.
        timeline_before: Timeline before it was resumed.
    """

    def __init__(
        self,
        config: RunConfig,
        trainer: Trainer,
        method: Method,
        run_dir: Path,
        log: MetricsLog,
        history: Sequence[EpochResult],
        timeline_before: Timeline,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._method = method
        self._run_dir = run_dir
        self._log = log
        self._epochs = list(history)
        self._timeline_before = timeline_before
        self._start_s = time.perf_counter()

    def run(self, data: Data) -> Summary:
        """Train, and write network, timeline and summary.

        Raises:
            Exception: Whatever ends the training, once the network and the summary are written.
        """
        config = self._config
        try:
            self._trainer.fit(
                data.train,
                data.test,
                epochs=config.epochs,
                on_epoch=self._on_epoch,
                checkpoints=self._checkpoints(),
            )
        except KeyboardInterrupt as stop:
            number = int(stop.args[0]) if stop.args else int(signal.SIGINT)
            epoch = f"stopped in epoch {len(self._epochs) + 1} of {config.epochs}"
            return self._end("interrupted", epoch, number)
        except Exception as error:
            self._fail(error)
            if isinstance(error, NonFiniteError) and config.on_nan == "restore":
                raise self._request_restore(error) from error
            error.add_note(f"the weights reached are in {self._run_dir}")
            raise
        return self._end("finished")

    def _on_epoch(self, epoch: EpochResult) -> None:
        self._epochs.append(epoch)
        if self._trainer.is_main_process:
            self._log.epoch(epoch)

    def _checkpoints(self) -> Checkpoints | None:
        """Build the settings of the run's checkpoints; None if it writes none."""
        config = self._config
        if not config.checkpoint_every:
            return None
        return Checkpoints(
            checkpoint_dir(self._run_dir),
            every=config.checkpoint_every,
            keep=config.checkpoint_keep,
            on_error=config.on_checkpoint_error,
            note=self._log.written,
        )

    def _end(self, state: str, message: str = "", signal_number: int = 0) -> Summary:
        """Collect what all processes have, write it, and return the summary."""
        trainer = self._trainer
        trainer.collect()
        if trainer.is_main_process:
            save_weights(trainer.network, self._run_dir / "network.pt")
        self._write_timeline()
        rows = [dataclasses.asdict(stage) for stage in self._summarize_stages()]
        gathered = trainer.gather(rows)[:: self._config.replicas]
        stages = [parse_stage_summary(row) for rows in gathered for row in rows]
        return self._write_summary(state, message, stages, signal_number)

    def _fail(self, error: Exception) -> None:
        """Write what this process has, without the others."""
        trainer = self._trainer
        if trainer.process_name is None:
            save_weights(trainer.network, self._run_dir / "network.pt")
        else:
            file = self._run_dir / f"network.{trainer.process_name}.pt"
            save_weights(trainer.stages[0].module, file)
        message = "\n".join([str(error), *getattr(error, "__notes__", [])])
        self._write_summary("failed", message, self._summarize_stages())

    def _request_restore(self, error: NonFiniteError) -> RestoreRequest:
        """Return the request to restart from the last checkpoint and skip the batch.

        Raises:
            NonFiniteError: There is no checkpoint, or a restart would not help.
        """
        if not has_checkpoints(self._run_dir, self._config.stages):
            raise NonFiniteError(f"{error}; there is no checkpoint yet to restore") from error
        return note_skipped_batch(self._run_dir, error, self._config.max_restores)

    def _summarize_stages(self) -> list[StageSummary]:
        return summarize_stages(self._trainer, self._method, self._epochs)

    def _write_summary(
        self, state: str, message: str, stages: Sequence[StageSummary], signal_number: int = 0
    ) -> Summary:
        """Build the summary, and write it in the main process."""
        trainer, epochs = self._trainer, self._epochs
        seconds = sum(epoch.seconds for epoch in epochs)
        seconds = seconds or time.perf_counter() - self._start_s
        summary = Summary(
            state=state,
            message=message,
            folder=self._run_dir,
            epochs=tuple(epochs),
            seconds=seconds,
            samples_per_s=sum(epoch.samples for epoch in epochs) / seconds,
            stages=tuple(stages),
            cuts=trainer.plan.cuts if trainer.plan else (),
            signal=signal_number,
        )
        if trainer.is_main_process:
            write_json(self._run_dir / "summary.json", dataclasses.asdict(summary))
        return summary

    def _write_timeline(self) -> None:
        file = self._config.timeline
        if file is not None:
            timeline = self._trainer.timeline()
            if self._trainer.is_main_process:
                self._timeline_before.concatenate(timeline).write(file)


def _read_timeline(config: RunConfig, point: ResumePoint | None) -> Timeline:
    """Read the timeline that a resumed run wrote before its checkpoint; else an empty one."""
    file = config.timeline
    if point is None or config.run_dir is None or file is None or not file.exists():
        return Timeline(())
    if RunConfig.read(config.run_dir / "run.json").timeline != file:
        return Timeline(())
    return Timeline.read(file).before_tick(point.tick)


def _require_device(device: str) -> None:
    """Refuse a device that PyTorch does not have here.

    Raises:
        OptionError: It does not exist, or has another form.
    """
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
