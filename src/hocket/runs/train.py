"""One training from a configuration: data, network, trainer, run folder, and its end."""

import dataclasses
import inspect
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from hocket.callbacks.tracker import Trackers
from hocket.codecs import parse_codec
from hocket.data import Data
from hocket.distributed.folder import identity
from hocket.distributed.folder.restart import environment_number
from hocket.engine.event import Event
from hocket.engine.gradient_error import GradientError
from hocket.errors import (
    DataError,
    HocketError,
    OptionError,
    RunFolderError,
    SampleError,
    format_problems,
    warn,
)
from hocket.methods.method import Method
from hocket.runs.build import (
    KEPT_PLAN,
    build_budget,
    build_loss,
    build_optimizer_factory,
    build_plan,
    build_run_method,
    build_scheduler_factory,
    load_data,
    network_builder,
    parse_stage_speeds,
    require_device,
)
from hocket.runs.config import RunConfig, write_json
from hocket.runs.environment import environment
from hocket.runs.metrics_log import (
    MetricsLog,
    cut_logs,
    cut_unknown_logs,
    remove_logs,
    tensorboard_writer,
)
from hocket.runs.run_dir import (
    TIMELINE,
    cannot_write,
    checkpoint_dir,
    create_run_dir,
    has_checkpoints,
    lock_run_dir,
    require_new,
    require_no_links,
    require_weights_format,
)
from hocket.runs.summary import SUMMARY, Summary
from hocket.runs.trackers import BuildTracker, parse_trackers
from hocket.runs.training_run import TrainingRun
from hocket.signals.losses import cross_entropy
from hocket.stage.stage import Stage
from hocket.timeline import Timeline
from hocket.training.budget import COUNTS_OWN_UPDATES
from hocket.training.checkpoints.state import ResumePoint
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
    method = build_run_method(config)
    previous_dir = config.run_dir if resume else None
    parts: dict[str, Any] = {
        "method": method,
        "stages": build_plan(config, previous_dir),
        "loss": build_loss(config),
        "evaluation_loss": cross_entropy,
        "optimizer": build_optimizer_factory(config),
        "scheduler": build_scheduler_factory(config),
        "stage_speeds": parse_stage_speeds(config),
    }
    require_device(config.device)
    if config.tensorboard:
        tensorboard_writer()
    trackers = parse_trackers(config.log_to)
    require_weights_format(config.weights_format)
    build = network_builder(config)
    alone = environment_number("WORLD_SIZE", 1) == 1
    is_first = alone or environment_number("RANK", 0) == 0
    if method.free_running:
        _refuse_common_counts(config, alone=alone)
    if is_first and not resume:
        require_new(config.run_dir)
    if config.threads:
        torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        if previous_dir is not None and previous_dir.exists():
            require_no_links(previous_dir)
            if is_first:
                stack.enter_context(lock_run_dir(previous_dir))
        with activity(f"reading {config.data}", shown=is_first):
            data = load_data(config)
        parts["network"] = network = build(data)
        parts["optimizer"] = build_optimizer_factory(config, network)
        return _train_in(config, method, parts, data, previous_dir, trackers, stack)


def _refuse_common_counts(config: RunConfig, *, alone: bool) -> None:
    """Refuse choices that count batches, updates or epochs of all stages together.

    Args:
        config: Choices of a training whose stages run freely.
        alone: True if all of them are in this process, where epochs end for all.

    Raises:
        OptionError: There is such a choice.
    """
    each = f"the stages of method {config.method!r} run freely, and each"
    problems = []
    if config.updates or config.evaluate_every:
        problems.append(f"{each} {COUNTS_OWN_UPDATES}")
    chosen = {
        "early_stopping": config.early_stopping > 0,
        "keep_best": config.keep_best != "none",
    }
    for name in [name for name, is_given in chosen.items() if is_given and not alone]:
        problems.append(
            f"{name} compares epochs, but {each} counts its own, and is evaluated at the end "
            "only; leave it out, or train in one process"
        )
    if problems:
        raise OptionError(format_problems("this run is impossible", problems))


def _train_in(
    config: RunConfig,
    method: Method,
    parts: dict[str, Any],
    data: Data,
    previous_dir: Path | None,
    trackers: Sequence[BuildTracker],
    stack: ExitStack,
) -> Summary:
    """Train in a new run folder, or continue in the previous one, which is locked.

    Args:
        config: Choices of the training.
        method: Its method, with the extra delay.
        parts: What the configuration names, built.
        data: The data set.
        previous_dir: Run folder to continue in; None for a new one.
        trackers: Others that get the metrics, to be built with the name of the run.
        stack: Entered contexts, to which the lock of a new folder is added.

    Raises:
        RunFolderError: The run folder exists already, or cannot be written.
        WorldError: Another process was given other options.
        OptionError: The run that is resumed has more epochs than it is to have.
    """
    listener = _Listener()
    trainer = _build_trainer(config, parts, listener)
    point = None
    if config.run_dir is not None and identity.has_rejoined():  # the others train already
        run_dir, point = config.run_dir, trainer.resume(checkpoint_dir(config.run_dir))
        cut_logs(run_dir, _log_sizes(point))
    else:
        require_alike(trainer.gather(config.same_on_all_machines()))
        with activity("building the stages", shown=trainer.is_main_process):
            _try_batch(trainer, data, config)
        if previous_dir is not None:
            point = _resume(trainer, previous_dir, config.stages)
            if point is not None and not method.free_running:  # whose epochs are repeated
                build_budget(config).require_ahead(
                    len(point.history), point.updates, begun=point.batch > 0
                )
            _restore_logs(trainer, previous_dir, point)
        is_new = previous_dir is None or not previous_dir.exists()
        own_dir = config.run_dir
        if trainer.is_main_process and is_new:
            own_dir = create_run_dir(config)
            stack.enter_context(lock_run_dir(own_dir))
        run_dir = Path(trainer.gather(str(own_dir))[0])
    timeline_before = _read_timeline(config, point)
    config = dataclasses.replace(config, run_dir=run_dir)
    if trainer.is_main_process:
        try:
            config.write(run_dir / "run.json")
            if trainer.plan is not None:
                write_json(run_dir / KEPT_PLAN, trainer.plan.as_dict())
            processes = config.stages * config.replicas if trainer.process_name else 1
            threads = torch.get_num_threads()
            print_line(f"processes: {processes}; threads of each: {threads} (--threads)")
            found = environment(threads) | {"processes": processes}
            write_json(run_dir / "environment.json", found)
        except OSError as error:
            raise RunFolderError(cannot_write(run_dir, error)) from error
    else:
        run_dir.mkdir(parents=True, exist_ok=True)  # on another machine
    process = None if trainer.is_main_process else trainer.process_name
    with (
        trainer,
        MetricsLog(
            run_dir,
            config.log_every,
            tensorboard=config.tensorboard,
            trackers=Trackers([b(run_dir.name, process, config.as_dict()) for b in trackers]),
            process=process,
        ) as log,
    ):
        listener.log = log
        history = point.history if point is not None else ()
        training = TrainingRun(config, trainer, method, run_dir, log, history, timeline_before)
        return training.run(data)


def _log_sizes(point: ResumePoint) -> dict[str, int]:
    """Return the sizes of the files of metrics that the parts of a checkpoint hold."""
    sizes: dict[str, int] = {}
    for note in point.notes:
        sizes |= note
    return sizes


def _restore_logs(trainer: Trainer, run_dir: Path, point: ResumePoint | None) -> None:
    """Cut the metrics of all processes behind a checkpoint, or remove those of a vain start.

    The summary of the end before goes, too: the training has not ended.
    """
    sizes = _log_sizes(point) if point is not None else {}
    known = {name for names in trainer.gather(list(sizes)) for name in names}
    if point is None and trainer.is_main_process:
        remove_logs(run_dir)
    elif point is not None:
        cut_logs(run_dir, sizes)
        if trainer.is_main_process:
            cut_unknown_logs(run_dir, known, point.tick, point.epoch)
            (run_dir / SUMMARY).unlink(missing_ok=True)


class _Listener:
    """Passes events on to the log, which is created after the trainer."""

    log: MetricsLog

    def on_event(self, event: Event, stage: Stage) -> None:
        self.log.log_event(event, stage)

    def on_gradient_error(self, comparison: GradientError) -> None:
        self.log.log_gradient_error(comparison)


def _build_trainer(config: RunConfig, parts: dict[str, Any], listener: _Listener) -> Trainer:
    """Build the trainer of a configuration from the parts that it names.

    Options of the same name, which need no parsing, are passed on as they are.
    """
    parsed = {"network", "method", "stages", "optimizer", "scheduler", "stage_speeds", "codec"}
    fields = {field.name for field in dataclasses.fields(config)}
    same = (inspect.signature(Trainer).parameters.keys() & fields) - parsed
    return Trainer(
        **parts,
        **{name: getattr(config, name) for name in same},
        watchers=[listener.on_event],
        on_gradient_error=listener.on_gradient_error if config.gradient_error_every else None,
        codec=parse_codec(config.codec),
        resumable=config.checkpoint_every > 0,
    )


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


def _resume(trainer: Trainer, run_dir: Path, stages: int) -> ResumePoint | None:
    """Resume from the last checkpoint of a run; None if not all stages have one."""
    if any(trainer.gather(has_checkpoints(run_dir, stages))):
        return trainer.resume(checkpoint_dir(run_dir))
    if trainer.is_main_process and checkpoint_dir(run_dir).exists():
        # Some stages had written their first one when another was killed that had none.
        shutil.rmtree(checkpoint_dir(run_dir))
    return None


def _read_timeline(config: RunConfig, point: ResumePoint | None) -> Timeline:
    """Read the timeline that a resumed run wrote before its checkpoint; else an empty one."""
    if point is None or config.run_dir is None or not config.record_timeline:
        return Timeline(())
    if not (file := config.run_dir / TIMELINE).exists():
        return Timeline(())
    try:
        return Timeline.read(file).before_tick(point.tick)
    except DataError as error:  # the training is worth more
        warn(f"{error}; the timeline begins here")
        return Timeline(())
