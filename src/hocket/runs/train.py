"""One training from a configuration: data, network, trainer, run folder, and its end."""

import dataclasses
import shutil
from collections import ChainMap
from contextlib import ExitStack
from pathlib import Path

import torch

from hocket.callbacks.trackers import Tracker, Trackers
from hocket.data import Data
from hocket.distributed.folder import identity
from hocket.distributed.folder.restart import environment_number
from hocket.engine.event import Event
from hocket.engine.gradient_error import GradientError
from hocket.errors import DataError, HocketError, OptionError, RunFolderError, SampleError, warn
from hocket.runs.build import KEPT_PLAN
from hocket.runs.config import OF_A_MACHINE, RunConfig, write_json
from hocket.runs.environment import environment
from hocket.runs.metrics_log import MetricsLog, cut_logs, cut_unknown_logs, log_files
from hocket.runs.resolve import ResolvedRun
from hocket.runs.run_dir import (
    TIMELINE,
    cannot_write,
    checkpoint_dir,
    create_run_dir,
    has_checkpoints,
    lock_run_dir,
    require_new,
    require_no_links,
)
from hocket.runs.summary import SUMMARY, Summary
from hocket.runs.training_run import TrainingRun
from hocket.stage.stage import Stage
from hocket.timeline import Timeline
from hocket.training.checkpoints.find_and_load import ResumePoint
from hocket.training.results.progress_bar import activity, print_line
from hocket.training.session.agreement import require_alike
from hocket.training.trainer import Trainer


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
        OptionError: The configuration is impossible.
        HocketError: Its parts do not fit each other, or something became NaN or infinite.
    """
    # Find everything that the configuration names, before a folder is made or data are read.
    previous_dir = config.run_dir if resume else None
    run = ResolvedRun.from_config(config, previous_dir)
    alone = environment_number("WORLD_SIZE", 1) == 1
    is_first = alone or environment_number("RANK", 0) == 0
    if is_first and not resume:
        require_new(config.run_dir)
    if config.threads:
        torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        # Keep others from training in the folder of a run that goes on.
        if previous_dir is not None and previous_dir.exists():
            require_no_links(previous_dir)
            if is_first:
                stack.enter_context(lock_run_dir(previous_dir))
        # Read the data, and build the network and the trainer.
        with activity(f"reading {config.data}", shown=is_first):
            data = run.data()
            if config.cuda_graphs:  # nothing then waits for the host to make a batch
                data = data.to(config.device)
        listener = _Listener()
        network = run.network(data)
        trainer = Trainer(
            network,
            stages=run.stages,
            method=run.method,
            optimizer=run.optimizer(network),
            loss=run.loss,
            device=config.device,
            watchers=[listener.on_event],
            on_gradient_error=(
                listener.on_gradient_error if run.options.gradient_error_every else None
            ),
            options=run.options,
        )
        return _train_in(run, trainer, listener, data, previous_dir, stack)


def _train_in(
    run: ResolvedRun,
    trainer: Trainer,
    listener: "_Listener",
    data: Data,
    previous_dir: Path | None,
    stack: ExitStack,
) -> Summary:
    """Train in a new run folder, or continue in the previous one, which is locked.

    The lock of a new folder is added to the stack, and the log is given to the listener.

    Raises:
        RunFolderError: The run folder exists already, or cannot be written.
        WorldError: Another process was given other options.
        OptionError: The run that is resumed has more epochs than it is to have.
    """
    config = run.config
    point = None
    if config.run_dir is not None and identity.has_rejoined():
        # Rejoin the others, which train already.
        run_dir, point = config.run_dir, trainer.resume(checkpoint_dir(config.run_dir))
        cut_logs(run_dir, ChainMap(*point.notes))
    else:
        # Begin together: all processes train the same, and their stages take the data.
        choices = config.as_dict()
        same = {name: choices[name] for name in choices if name not in OF_A_MACHINE}
        require_alike(trainer.gather(same))
        with activity("building the stages", shown=trainer.is_main_process):
            _try_batch(trainer, data, config)
        if previous_dir is not None:
            point = _resume(trainer, run, previous_dir)
        # Make and lock a new folder in the main process, and tell the others.
        is_new = previous_dir is None or not previous_dir.exists()
        own_dir = config.run_dir
        if trainer.is_main_process and is_new:
            own_dir = create_run_dir(config)
            stack.enter_context(lock_run_dir(own_dir))
        run_dir = Path(trainer.gather(str(own_dir))[0])
    # Describe the run in its folder, then train.
    is_main = trainer.is_main_process
    timeline_before = _read_timeline(config, point) if is_main else Timeline(())
    run = dataclasses.replace(run, config=dataclasses.replace(config, run_dir=run_dir))
    _write_description(run.config, trainer, run_dir)
    process = None if is_main else trainer.process_name
    with trainer, _open_log(run, run_dir, process) as log:
        listener.log = log
        history = point.history if point is not None else ()
        return TrainingRun(run, trainer, run_dir, log, history, timeline_before).train(data)


def _open_log(run: ResolvedRun, run_dir: Path, process: str | None) -> MetricsLog:
    """Open the log with its trackers; those that have begun are closed if that fails."""
    config = run.config
    trackers: list[Tracker] = []
    try:
        for build in run.trackers:
            trackers.append(build(run_dir.name, process, config.as_dict()))
        return MetricsLog(
            run_dir,
            config.log_every,
            tensorboard=config.tensorboard,
            trackers=Trackers(trackers),
            process=process,
        )
    except BaseException:
        Trackers(trackers).close(failed=True)
        raise


def _write_description(config: RunConfig, trainer: Trainer, run_dir: Path) -> None:
    """Write the choices, the cuts and the environment of a run into its folder.

    Only the main process does; the others make the folder, if it is on another machine.

    Raises:
        RunFolderError: They cannot be written.
    """
    try:
        if not trainer.is_main_process:
            run_dir.mkdir(parents=True, exist_ok=True)
            return
        config.write(run_dir / "run.json")
        if trainer.plan is not None:
            write_json(run_dir / KEPT_PLAN, trainer.plan.as_dict())
        processes = config.stages * config.replicas if trainer.process_name else 1
        threads = torch.get_num_threads()
        simulated = processes == 1 and config.replicas > 1
        replicas = f", with {config.replicas} replicas of each stage" if simulated else ""
        print_line(f"processes: {processes}{replicas}; threads of each: {threads} (--threads)")
        found = environment(threads) | {"processes": processes}
        write_json(run_dir / "environment.json", found)
    except OSError as error:
        raise RunFolderError(cannot_write(run_dir, error)) from error


class _Listener:
    """Passes events on to the log, which is created after the trainer."""

    log: MetricsLog

    def on_event(self, event: Event, stage: Stage) -> None:
        self.log.log_event(event, stage)

    def on_gradient_error(self, comparison: GradientError) -> None:
        self.log.log_gradient_error(comparison)


def _try_batch(trainer: Trainer, data: Data, config: RunConfig) -> None:
    """Build the stages and evaluate a batch, so that errors show before anything is written.

    Raises:
        OptionError: The network does not take the data.
        HocketError: The stages raised it themselves.
    """  # noqa: DOC501  # of the caught classes, only a HocketError is raised again
    batch = next(data.test.serve(0))
    try:
        trainer.evaluate([batch])
    except torch.OutOfMemoryError:
        raise
    except (SampleError, RuntimeError, IndexError, TypeError) as error:
        if isinstance(error, HocketError) and not isinstance(error, SampleError):
            raise
        reason = error.reason if isinstance(error, SampleError) else str(error)
        raise OptionError(
            f"the network {config.network!r} does not take the data {config.data!r}, whose "
            f"inputs have the shape {data.shape} and which has {data.classes} classes: {reason}"
        ) from error


def _resume(trainer: Trainer, run: ResolvedRun, run_dir: Path) -> ResumePoint | None:
    """Resume from the last checkpoint of a run, with its logs; None if not all have one.

    Raises:
        RunFolderError: A file of what came later cannot be cut or removed.
    """
    point = None
    if any(trainer.gather(has_checkpoints(run_dir, run.config.stages))):
        point = trainer.resume(checkpoint_dir(run_dir))
        if not run.method.free_running:  # whose epochs are repeated
            done = len(point.history), point.updates
            run.budget.require_ahead(*done, begun=point.batch > 0)
    elif trainer.is_main_process and checkpoint_dir(run_dir).exists():
        # Some stages had written their first one when another was killed that had none.
        shutil.rmtree(checkpoint_dir(run_dir))
    # Cut the metrics of all processes behind the checkpoint, or remove them if it left none.
    # The summary goes, too: the training has not ended.
    sizes = ChainMap(*point.notes) if point is not None else {}
    known = {name for names in trainer.gather(list(sizes)) for name in names}
    try:
        if trainer.is_main_process:
            (run_dir / SUMMARY).unlink(missing_ok=True)
            if point is None:
                for file in log_files(run_dir):
                    file.unlink()
            else:
                cut_unknown_logs(run_dir, known, point.tick, point.epoch)
        cut_logs(run_dir, sizes)
    except OSError as error:
        raise RunFolderError(cannot_write(Path(error.filename or run_dir), error)) from error
    return point


def _read_timeline(config: RunConfig, point: ResumePoint | None) -> Timeline:
    """Read the timeline that a resumed run wrote before its checkpoint; else an empty one."""
    file = config.run_dir / TIMELINE if config.run_dir and config.record_timeline else None
    if point is None or file is None or not file.exists():
        return Timeline(())
    try:
        return Timeline.read(file).before_tick(point.tick)
    except DataError as error:  # the training is worth more
        warn(f"{error}; the timeline begins here")
        return Timeline(())
