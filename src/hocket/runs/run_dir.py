"""Run folder: its name, its checkpoints, and the weights written to it."""

import itertools
import time
from pathlib import Path

import torch
from torch import nn

from hocket.atomic import replace_atomically
from hocket.checkpoint.directory import newest_first
from hocket.errors import RunFolderError
from hocket.options import Named
from hocket.runs.build import network_name
from hocket.runs.config import RunConfig


def choose_run_dir(config: RunConfig) -> Path:
    """Return a folder under runs/ that does not exist yet, named after the training."""
    method, data = (Named.parse(text).name for text in (config.method, config.data))
    timestamp = time.strftime("%Y%m%d-%H%M%S")
    title = f"{method}{config.stages}-{network_name(config)}-{data}-{timestamp}"
    for n in itertools.count():
        run_dir = Path("runs") / (f"{title}-{n}" if n else title)
        if not run_dir.exists():
            break
    return run_dir


def create_run_dir(config: RunConfig) -> Path:
    """Create the folder of a new run and return it.

    Raises:
        RunFolderError: It exists already, or cannot be created.
    """
    require_new(config.run_dir)
    run_dir = choose_run_dir(config) if config.run_dir is None else config.run_dir
    try:
        run_dir.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make the run folder {str(run_dir)!r}: {error.strerror}; name another with "
            "--run-dir"
        ) from error
    return run_dir


def require_new(run_dir: Path | None) -> None:
    """Refuse a run folder that exists.

    Raises:
        RunFolderError: It exists.
    """
    if run_dir is not None and run_dir.exists():
        raise RunFolderError(
            f"the run folder {str(run_dir)!r} exists already; name another with --run-dir, or "
            "move that one away"
        )


def checkpoint_dir(run_dir: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run_dir / "checkpoints"


def has_checkpoints(run_dir: Path, stages: int) -> bool:
    """Return True if all stages of a run can be resumed from checkpoints in its folder."""
    folder = checkpoint_dir(run_dir)
    by_stage = [folder / f"stage{k}" for k in range(stages)]
    return bool(newest_first(folder)) or all(map(newest_first, by_stage))


def save_weights(network: nn.Module, file: Path) -> None:
    """Write the weights under the network's own names, on the CPU."""
    with replace_atomically(file) as unfinished:
        weights = {name: value.cpu() for name, value in network.state_dict().items()}
        torch.save(weights, unfinished)
