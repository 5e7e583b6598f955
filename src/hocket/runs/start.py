"""Start of a training: new, resumed or restarted, in this process or in several."""

import dataclasses
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hocket.distributed.folder import identity
from hocket.distributed.folder.restart import (
    RestartBudget,
    environment_number,
    retry_after_loss,
    torchrun_restart_count,
)
from hocket.distributed.launching.launch import CHECKPOINT_GRACE_S, launch
from hocket.errors import CheckpointError, HocketError, OptionError, RunFolderError
from hocket.runs.build import build_run_method
from hocket.runs.config import RunConfig, check_same_run
from hocket.runs.run_dir import create_run_dir, has_checkpoints, require_new
from hocket.runs.summary import Summary
from hocket.runs.train import train

Report = Callable[[RunConfig, Summary | HocketError], int]
"""Reports the end of a training in each of its processes, to which it is pickled, and returns
the exit code of the process."""


def start_training(
    config: RunConfig,
    report: Report,
    *,
    resume_from: Path | None,
    processes: int,
    max_restarts: int,
) -> int:
    """Train as a configuration says, with restarts after losses.

    Args:
        config: Choices of the training.
        report: Reports on the training.
        resume_from: Folder of a run to resume from its last checkpoint; None for a new run.
        processes: Processes of this machine to train in.
        max_restarts: Number of restarts after a process was lost, of all processes or of a
            single one.

    Returns:
        The exit code.

    Raises:
        OptionError: An option contradicts another, or the run that is resumed.
        CheckpointError: There is no checkpoint to resume from.
    """
    # Check the numbers, and find the choices of a run that is resumed.
    if max_restarts < 0 or (max_restarts and (processes == 1 or not config.checkpoint_every)):
        raise OptionError(
            f"max_restarts is {max_restarts}; give a number from 0 on, and with one above 0 "
            "--processes and --checkpoint-every"
        )
    if resume := resume_from is not None:
        if not has_checkpoints(resume_from, config.stages):
            raise CheckpointError(
                f"cannot resume {str(resume_from)!r}: it has no checkpoint of all stages; a "
                "run writes some with --checkpoint-every"
            )
        check_same_run(config, RunConfig.read(resume_from / "run.json"))
        config = dataclasses.replace(config, run_dir=resume_from)
    # Train in this process, which torchrun may have started, and started again.
    if processes == 1:
        return train_in_process(config, resume or _restarted_by_torchrun(config), report)
    # Train in several processes, one for each replica of a stage.
    needed = config.stages * config.replicas
    if processes != needed:
        raise OptionError(
            f"processes is {processes}, but {config.stages} stages x {config.replicas} "
            f"replicas want {needed}; give --processes {needed}, or change --stages"
        )
    # The processes look for all else that the run names: code of the user may ask for its rank.
    rejoins = build_run_method(config).free_running
    budget = RestartBudget(max_restarts)
    if not resume:  # a restart would take it for the run's
        require_new(config.run_dir)
    # All starts have one folder, which is removed if none of them has written anything.
    made_dir = create_run_dir(config) if max_restarts and config.run_dir is None else None
    config = dataclasses.replace(config, run_dir=made_dir or config.run_dir)

    def start(restarted: bool) -> int:
        return launch(
            _train_launched,
            config,
            resume or restarted,
            report,
            warnings.showwarning,
            processes=processes,
            threads=config.threads,
            grace_s=CHECKPOINT_GRACE_S,
            rejoin_restarts=budget if rejoins else None,
        )

    try:
        return retry_after_loss(start, budget)
    finally:
        if made_dir is not None:
            with suppress(OSError):  # it is not empty
                made_dir.rmdir()


def train_in_process(config: RunConfig, resume: bool, report: Report) -> int:
    """Train in this process, and return the exit code.

    Args:
        config: Choices of the training.
        resume: True to resume in the run folder, from the last checkpoint if there is any.
        report: Called with the summary or the error.
    """
    try:
        summary = train(config, resume=resume or identity.has_rejoined())
    except HocketError as error:
        return report(config, error)
    return report(config, summary)


def _train_launched(
    config: RunConfig, resume: bool, report: Report, show_warning: Callable[..., None]
) -> int:
    warnings.showwarning = show_warning  # as in the process that launched this one
    return train_in_process(config, resume, report)


def _restarted_by_torchrun(config: RunConfig) -> bool:
    """Return True if torchrun has restarted this process, whose run folder is its own.

    Raises:
        OptionError: torchrun may restart it, and it could not find its checkpoints.
        RunFolderError: The folder has another run, which the first start has refused.
    """
    limit = environment_number("TORCHELASTIC_MAX_RESTARTS", 0)
    if limit and (config.run_dir is None or not config.checkpoint_every):
        raise OptionError(
            f"torchrun may restart this training (--max-restarts {limit}), which then needs "
            "its checkpoints; give --run-dir and --checkpoint-every, or --max-restarts 0"
        )
    if not torchrun_restart_count():
        return False
    file = None if config.run_dir is None else config.run_dir / "run.json"
    if file is None or not file.exists():
        return True
    if dataclasses.replace(RunConfig.read(file), run_dir=config.run_dir) != config:
        raise RunFolderError(
            f"the run folder {str(config.run_dir)!r} has another run; name another with "
            "--run-dir, or move that one away"
        )
    return True
