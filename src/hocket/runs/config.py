"""Everything one training needs, as one frozen value that a file can hold."""

import dataclasses
import json
import math
import os
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hocket.errors import OptionError, listed
from hocket.options import wrong_options


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The choices of one training; what is written ``name:option=value`` takes options."""

    method: str = "fdg"
    """What trains it, for example fdg:shrink=0.5 (`hocket methods` lists all)."""
    stages: int = 2
    """How many stages the network is cut into."""
    plan: str = "balanced"
    """Where to cut: balanced, paper, a file of `hocket plan` (.json), or the layers at which
    stages begin: layer2_1,layer3_0."""
    network: str = "mlp"
    """The network, for example resnet20, mlp:hidden=[64,64], hf_gpt2 or own.py:function."""
    data: str = "digits"
    """The data set: digits, cifar10, cifar100, folder, hf, text or synthetic."""
    data_dir: Path | None = None
    """Where the files of the data set are."""
    epochs: int = 20
    """How often to go through the data."""
    batch_size: int = 64
    """Inputs in a batch."""
    optimizer: str = "SGD:lr=0.05,momentum=0.9,weight_decay=0.0005"
    """An optimizer of torch.optim."""
    scheduler: str = "none"
    """A scheduler of torch.optim.lr_scheduler, such as MultiStepLR:milestones=[150,225]."""
    scheduler_unit: Literal["epoch", "update"] = "epoch"
    """What the scheduler counts."""
    warmup_epochs: int = 0
    """Epochs at the start with a lower learning rate."""
    warmup_factor: float = 0.1
    """Factor on the learning rate in those epochs."""
    seed: int = 0
    """Where initial weights, order of data, augmentation and dropout come from."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or mps."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What to compute in; bf16 means autocast."""
    channels_last: bool = False
    """Whether images are kept in the memory format that convolutions like best."""
    extra_delay: int = 0
    """Ticks that packets may take longer, which hides a slow link and adds to the delays."""
    codec: str = "none"
    """How what stages send is written: none, bf16, fp16, int8, or vq:groups=16,codes=256."""
    stage_speeds: str = "equal"
    """How fast each stage is, where each runs freely: 1,1,0.5 for a last one half as fast."""
    stage_timing: Literal["regular", "random"] = "regular"
    """Whether such stages take their turns at equal intervals, or by chance."""
    replicas: int = 1
    """Processes that share the work of each stage, where there are several processes."""
    batchnorm: Literal["local", "shared"] = "local"
    """Over which inputs BatchNorm has its statistics: those of each replica, or of all."""
    timeout_s: float = 60.0
    """Seconds that a process may let another one wait before that is a hang."""
    checksum: bool = True
    """Whether tensors that go to another process leave with a checksum."""
    threads: int = 0
    """Threads of PyTorch; 0 leaves its own choice."""
    log_every: int = 10
    """Write metrics of every n-th batch."""
    gradient_error_every: int = 0
    """Compare the gradients of every n-th batch with the true ones; 0 for none."""
    checkpoint_every: int = 0
    """Ticks between checkpoints, which epochs and stops end with, too; 0 for none at all."""
    checkpoint_keep: int = 3
    """How many of the newest checkpoints stay."""
    on_checkpoint_error: Literal["warn", "stop"] = "warn"
    """What becomes of a training whose checkpoint cannot be written."""
    on_nan: Literal["stop", "skip", "restore"] = "stop"
    """What becomes of a training in which something is NaN or infinite: it stops, skips that
    batch, or goes back to its last checkpoint and skips it from there."""
    max_restores: int = 3
    """How often a training may go back so."""
    timeline: Path | None = None
    """Write a timeline to this file, for Perfetto and `hocket draw --timeline`."""
    tensorboard: bool = False
    """Whether to write for TensorBoard as well."""
    run_dir: Path | None = None
    """The run folder, which must not exist; by default one under runs/."""

    def __post_init__(self) -> None:
        problems = [
            f"{field} is {value}; use a number of at least {least}"
            for field, value, least in (
                ("stages", self.stages, 1),
                ("epochs", self.epochs, 1),
                ("batch_size", self.batch_size, 1),
                ("warmup_epochs", self.warmup_epochs, 0),
                ("seed", self.seed, 0),
                ("extra_delay", self.extra_delay, 0),
                ("replicas", self.replicas, 1),
                ("threads", self.threads, 0),
                ("log_every", self.log_every, 1),
                ("gradient_error_every", self.gradient_error_every, 0),
                ("checkpoint_every", self.checkpoint_every, 0),
                ("checkpoint_keep", self.checkpoint_keep, 1),
                ("max_restores", self.max_restores, 0),
            )
            if value < least
        ]
        if not self.timeout_s > 0:
            problems.append(f"timeout_s is {self.timeout_s}; use a number above 0")
        if not 0 < self.warmup_factor <= 1:
            problems.append(f"warmup_factor is {self.warmup_factor}; use a number in (0, 1]")
        if self.on_nan == "restore" and not self.checkpoint_every:
            problems.append(
                "on_nan is 'restore', and there are no checkpoints to go back to; give "
                "checkpoint_every, or use 'skip'"
            )
        if self.on_nan != "stop" and self.replicas > 1:
            problems.append(
                f"on_nan is {self.on_nan!r}, and {self.replicas} replicas that share "
                "each batch do not agree on which to skip; use 'stop', or one replica"
            )
        if problems:
            raise OptionError(listed("this run is impossible", problems))

    def as_dict(self) -> dict[str, Any]:
        """The choices as plain values."""
        values: dict[str, Any] = plain_values(dataclasses.asdict(self))
        return values

    def write(self, file: Path) -> None:
        """Write the run as JSON, to be passed back as ``--config``."""
        write_json(file, self.as_dict())

    @staticmethod
    def read(file: Path) -> "RunConfig":
        """The run that a file holds; what it leaves out has its default.

        Raises:
            OptionError: The file is not there or not JSON, or a key or value is wrong.
        """
        return parse_config(read_values(file), str(file))


MAY_CHANGE = frozenset(
    [
        "stages",
        "plan",
        "replicas",
        "epochs",
        "data_dir",
        "device",
        "threads",
        "timeout_s",
        "checksum",
        "run_dir",
        "log_every",
        "gradient_error_every",
        "timeline",
        "tensorboard",
        "checkpoint_every",
        "checkpoint_keep",
        "on_checkpoint_error",
        "on_nan",
        "max_restores",
    ]
)
"""What may be another choice where a run goes on."""


def check_same_run(run: RunConfig, before: RunConfig) -> None:
    """Refuse to go on with a run by other choices than it was begun with, where they matter.

    Raises:
        OptionError: With every such choice.
    """
    was = before.as_dict()
    problems = [
        f"{name} is {value!r}, and was {was[name]!r}; begin a new run for that"
        for name, value in run.as_dict().items()
        if name not in MAY_CHANGE and value != was[name]
    ]
    if problems:
        raise OptionError(listed("a run goes on as it was begun", problems))


def read_values(file: Path) -> dict[str, Any]:
    """The keys and values of a run file, as they stand there.

    Raises:
        OptionError: The file is not there, not JSON, or holds no keys and values.
    """
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise OptionError(
            f"cannot read the run file {str(file)!r}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise OptionError(f"the run file {str(file)!r} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise OptionError(f"the run file {str(file)!r} holds no object of keys and values")
    return values


def parse_config(values: dict[str, Any], where: str) -> RunConfig:
    """A run from plain values, each checked against the type of its field.

    Raises:
        OptionError: With every key and value that is wrong.
    """
    hints = typing.get_type_hints(RunConfig)
    if problems := wrong_options(values, hints, hints, kind="key"):
        raise OptionError(listed(f"cannot use {where}", problems))
    paths = {"data_dir", "run_dir", "timeline"}
    checked: dict[str, Any] = {
        k: Path(v) if k in paths and v is not None else v for k, v in values.items()
    }
    return RunConfig(**checked)


def write_json(file: Path, value: Any) -> None:
    """Write JSON so that a reader finds the old file or the new one, never half of it."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(plain_values(value), indent=2) + "\n")
    os.replace(part, file)


def plain_values(value: Any) -> Any:
    """A value as JSON knows it: paths as text, null for a number that is NaN or infinite."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
