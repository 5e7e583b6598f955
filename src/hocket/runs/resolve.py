"""Everything that a configuration names, found and checked before data are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from torch import nn

from hocket.callbacks.mlflow_tracker import MLflow
from hocket.callbacks.wandb_tracker import WandB
from hocket.codecs.registry import parse_codec
from hocket.data import Data
from hocket.distributed.folder.restart import environment_number
from hocket.distributed.network.device import parse_device
from hocket.distributed.replicas.meet import as_meet
from hocket.errors import OptionError, Problems, import_extra, raise_problems
from hocket.methods.method import Method
from hocket.optim.factory import OptimizerFactory
from hocket.options.common_options import CommonOptions
from hocket.options.ranges import wrong_choice
from hocket.partition import Plan
from hocket.runs.build import (
    build_optimizer_factory,
    build_plan,
    build_run_method,
    build_scheduler_factory,
    load_data,
    network_builder,
    parse_stage_speeds,
    require_data,
)
from hocket.runs.config import RunConfig
from hocket.signals.losses import Loss, cross_entropy
from hocket.stage.training_options import TrainingOptions
from hocket.stage.update.clipping import as_clipping
from hocket.training.budget import COUNTS_OWN_UPDATES, Budget
from hocket.training.results.rows import import_tensorboard
from hocket.training.weights_file import import_safetensors


@dataclass(frozen=True, kw_only=True)
class ResolvedRun:
    """A run with everything that its configuration names.

    Attributes:
        config: Choices of the training.
        method: The method, with its extra delay or its staleness.
        stages: Number of stages to balance, or the cuts.
        loss: The loss to train with.
        budget: Length of the training.
        options: All other options of the trainer, with scheduler, codec and speeds.
        trackers: Services that get the metrics.
        data: Reads the data set.
        network: Builds the network for the data.
        optimizer: Returns what builds the optimizer of a stage, for the network.
    """

    config: RunConfig
    method: Method
    stages: int | Plan
    loss: Loss
    budget: Budget
    options: TrainingOptions
    trackers: Sequence[type[WandB | MLflow]]
    data: Callable[[], Data]
    network: Callable[[Data], nn.Module]
    optimizer: Callable[[nn.Module], OptimizerFactory]

    @staticmethod
    def from_config(config: RunConfig, previous_dir: Path | None = None) -> "ResolvedRun":
        """Find and check everything that a configuration names.

        A training that is continued has a previous folder, and keeps its cuts.

        Raises:
            OptionError: With everything that does not exist, or not here, or does not fit.
        """
        problems = Problems()
        # Method, cuts, and what is trained.
        method = problems.attempt(build_run_method, config)
        problems += [] if method is None else _find_common_counts(config, method)
        stages = problems.attempt(build_plan, config, previous_dir)
        network = problems.attempt(network_builder, config)
        problems.attempt(require_data, config)
        # Everything that a stage is built from.
        problems.attempt(build_optimizer_factory, config)
        scheduler = problems.attempt(build_scheduler_factory, config)
        codec = problems.attempt(parse_codec, config.codec)
        stage_speeds = problems.attempt(parse_stage_speeds, config)
        problems.attempt(as_clipping, config.clip)
        problems.attempt(as_meet, config.meet)
        problems.attempt(parse_device, config.device)
        # Packages and files that are needed later, when work would be lost.
        trackers = problems.attempt(parse_trackers, config.log_to)
        if config.weights_format == "safetensors":
            problems.attempt(import_safetensors)
        if config.tensorboard:
            problems.attempt(import_tensorboard)
        problems.raise_together("this run is impossible")
        # Options that a run has in common with a trainer are passed on as they are.
        smoothed = partial(cross_entropy, label_smoothing=config.label_smoothing)
        names = [field.name for field in fields(CommonOptions)]
        common = {name: getattr(config, name) for name in names}
        options = TrainingOptions(
            **common,
            scheduler=scheduler,
            codec=codec,
            stage_speeds=stage_speeds,
            evaluation_loss=cross_entropy,
            resumable=config.checkpoint_every > 0,
        )
        return ResolvedRun(
            config=config,
            method=method,
            stages=stages,
            loss=smoothed if config.label_smoothing else cross_entropy,
            budget=Budget(
                epochs=None if config.updates else config.epochs,
                updates=config.updates or None,
                evaluate_every=config.evaluate_every,
            ),
            options=options,
            trackers=trackers,
            data=partial(load_data, config),
            network=network,
            optimizer=partial(build_optimizer_factory, config),
        )


def _find_common_counts(config: RunConfig, method: Method) -> list[str]:
    """Return one problem for each choice that counts for stages that run freely together."""
    if not method.free_running:
        return []
    each = f"the stages of method {config.method!r} run freely, and each"
    problems = []
    if config.updates or config.evaluate_every:
        problems.append(f"{each} {COUNTS_OWN_UPDATES}")
    # In one process all epochs end together.
    compare = ("early_stopping", "keep_best") if environment_number("WORLD_SIZE", 1) > 1 else ()
    return problems + [
        f"{name} compares epochs, but {each} counts its own, and is evaluated at the end only; "
        "leave it out, or train in one process"
        for name in compare
        if getattr(config, name) != getattr(RunConfig, name)
    ]


TRACKERS: Mapping[str, type[WandB | MLflow]] = {"wandb": WandB, "mlflow": MLflow}
"""Trackers by the names of their packages."""


def parse_trackers(text: str) -> Sequence[type[WandB | MLflow]]:
    """Return the trackers of names such as ``wandb,mlflow``, whose packages are there.

    Raises:
        OptionError: A name is unknown or comes twice, or a package is not installed.

    >>> parse_trackers("none")
    []
    """
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    problems = [each for name in names for each in wrong_choice("log_to", name, [*TRACKERS])]
    if len(set(names)) < len(names):
        problems.append(f"log_to is {text!r}; name each once")
    if "tensorboard" in names:
        problems.append("files for TensorBoard have their own option: --tensorboard")
    raise_problems(OptionError, "cannot send metrics to these trackers", problems)
    for name in names:
        import_extra(name, name, f"the tracker {name!r}")
    return [TRACKERS[name] for name in names]
