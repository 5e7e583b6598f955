"""Configuration of one training, as a frozen value that a file can hold."""

import dataclasses
import json
import math
import os
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hocket.errors import OptionError, Problems, format_problems, raise_problems
from hocket.files import read_json, write_text_atomically
from hocket.options.common_options import NEEDED, RANGES, CommonOptions
from hocket.options.hints import wrong_options
from hocket.options.ranges import Range

_AT_LEAST_1 = ("epochs", "batch_size", "log_every", "checkpoint_keep")
_AT_LEAST_0 = (
    "extra_delay", "checkpoint_every", "updates", "evaluate_every", "early_stopping", "workers",
    "mixup", "cutmix",
)  # fmt: skip
_SHARES = ("hold_out", "average_weights", "label_smoothing")
RUN_RANGES = {
    **RANGES,
    "stages": Range(least=1, most=1024),  # a file of unknown origin may name any number
    "threads": Range(least=0, below=1025),  # with more PyTorch may crash
    **dict.fromkeys(_AT_LEAST_1, Range(least=1)),
    **dict.fromkeys(_AT_LEAST_0, Range(least=0)),
    **dict.fromkeys(_SHARES, Range(least=0, below=1)),
}
"""Ranges of the numbers of a run."""
_NEEDED_BY_RUNS = dict.fromkeys(("checkpoint_keep", "on_checkpoint_error"), "checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class RunConfig(CommonOptions):
    """Choices of one training; those written ``name:option=value`` take options.

    Options that a trainer has as well are inherited, with their texts.
    """

    method: str = "fdg"
    """Training method, for example fdg:shrink=0.5 (`hocket methods` lists all), or
    own.py:function; fdg+t1 or fdg+own.py:function with a remedy."""
    stages: int = 2
    """Number of stages that the network is cut into."""
    plan: str = "balanced"
    """Cuts: balanced; paper, as a paper cuts this network; a file of `hocket plan` (.json); or
    the layers at which stages begin: layer2_1,layer3_0."""
    network: str = "mlp"
    """Network, for example resnet20, mlp:hidden=[64,64] or own.py:function."""
    data: str = "digits"
    """Data set: digits, cifar10, cifar100, folder, text, synthetic or own.py:function."""
    data_dir: Path | None = None
    """Folder or file of the data set."""
    workers: int = 0
    """Threads that prepare batches ahead; 0 to prepare each when it is needed."""
    hold_out: float = 0.0
    """Fraction of the training examples to hold out and evaluate on instead of the test data; 0
    for none."""
    epochs: int = 20
    """Number of passes through the training data."""
    updates: int = 0
    """Number of updates of each stage to end after, instead of epochs; 0 for epochs."""
    evaluate_every: int = 0
    """Updates between evaluations within epochs; 0 for none."""
    early_stopping: int = 0
    """Epochs in a row without a lower test loss after which the training ends; 0 for none."""
    keep_best: Literal["none", "test_error", "test_loss", "train_loss"] = "none"
    """Result by which the weights of the best epoch are kept, as network-best.pt or
    network-best.safetensors."""
    batch_size: int = 64
    """Number of inputs in a batch."""
    optimizer: str = "SGD:lr=0.025,momentum=0.5,weight_decay=0.0005"
    """Optimizer of torch.optim, RotatedAdam, or Muon (for matrices, with AdamW for the rest),
    such as AdamW:lr=0.001,betas=[0.9,0.99],weight_decay=0.1."""
    weight_decay_on: Literal["all", "matrices"] = "all"
    """Weights that the optimizer's weight_decay acts on: all, or matrices only, which leaves
    out biases and norms."""
    scheduler: str = "none"
    """Scheduler of torch.optim.lr_scheduler, such as MultiStepLR:milestones=[150,225]; several,
    joined by +, act together, as in ConstantLR:factor=0.1,total_iters=3+StepLR:step_size=9."""
    label_smoothing: float = 0.0
    """Share of each target that all classes divide equally, in training; evaluations report
    the loss without it."""
    mixup: float = 0.0
    """Alpha of mixup, which trains on sums of two examples; 0 for none."""
    cutmix: float = 0.0
    """Alpha of CutMix, which trains on images with a part of another; 0 for none."""
    clip: str = "none"
    average_weights: float = 0.0
    """Decay of a moving average of the weights, such as 0.999, which is kept as
    network-averaged.pt or network-averaged.safetensors and evaluated at the end; 0 for none."""
    device: str = "cpu"
    """Device to compute on: cpu, cuda or mps."""
    threads: int = 0
    """Threads of PyTorch in each process; 0 for its default, or with --processes for an equal
    share of the cores."""
    compile: bool = False
    extra_delay: int | str = 0
    """Additional ticks that packets may take between all stages, or between each two: 1,0,2. In
    a tick every stage works on a batch. Extra delays hide a slow link (`hocket plan` chooses
    them) and make gradients staler."""
    staleness: str = "none"
    """Staleness of each stage, in updates, instead of the method's: 6,4,2,0 for twice the
    staleness of ddg on four stages."""
    codec: str = "none"
    """Compression of packets: none, bf16, fp16, int8, or vq:groups=16,codes=256."""
    meet: str = "none"
    stage_speeds: str = "equal"
    """Speeds of asynchronous stages (dgl-async): 1,1,0.5 if the last one is half as fast."""
    log_every: int = 10
    """Write metrics of every n-th batch."""
    checkpoint_every: int = 0
    """Ticks between checkpoints; each epoch and each stop ends with one, too; 0 for none."""
    checkpoint_keep: int = 3
    """Number of newest checkpoints to keep."""
    on_checkpoint_error: Literal["warn", "stop"] = "warn"
    """Reaction to a checkpoint that cannot be written."""
    tensorboard: bool = False
    """Write event files for TensorBoard."""
    log_to: str = "none"
    """Services that get the metrics as well: wandb, mlflow, or wandb,mlflow."""
    weights_format: Literal["pt", "safetensors"] = "pt"
    """Format of the saved weights: network.pt, or network.safetensors."""
    run_dir: Path | None = None
    """Run folder, new or empty; by default a new one under runs/."""

    def __post_init__(self) -> None:
        problems = Problems(self.find_problems(RUN_RANGES, NEEDED | _NEEDED_BY_RUNS))
        if self.updates and self.epochs != RunConfig.epochs:
            problems.append(
                f"updates is {self.updates} and epochs is {self.epochs}; a training ends after "
                "one of the two, so give one"
            )
        problems.raise_together("this run is impossible")

    def as_dict(self) -> dict[str, Any]:
        """Return the choices as plain values."""
        return dict(plain_values(dataclasses.asdict(self)))

    def write(self, file: Path) -> None:
        """Write the configuration as JSON, a file for ``--config``."""
        write_json(file, self.as_dict())

    @staticmethod
    def read(file: Path) -> "RunConfig":
        """Read a configuration from a file; keys that it leaves out have their defaults.

        Raises:
            OptionError: The file is missing or not JSON, or a key or value is wrong.
        """
        return parse_config(read_values(file), str(file))


OF_A_MACHINE = ("data_dir", "device", "run_dir", "threads")
"""Choices that may differ between the processes of a run."""
MAY_CHANGE = frozenset([
    "stages", "plan", "replicas", "epochs", "updates", "evaluate_every", "early_stopping",
    "data_dir", "workers", "device", "streams", "cuda_graphs", "threads", "timeout_s",
    "slow_timeout_s", "checksum", "run_dir", "log_every", "gradient_error_every",
    "record_timeline", "tensorboard", "log_to", "weights_format", "checkpoint_every",
    "checkpoint_keep", "on_checkpoint_error", "on_nan", "check_every",
])  # fmt: skip
"""Choices that may differ in a resumed run."""


def check_same_run(config: RunConfig, before: RunConfig) -> None:
    """Refuse to resume a run with choices that differ from its own, where they have to stay.

    Raises:
        OptionError: With every such choice.
    """
    values_before = before.as_dict()
    problems = [
        f"{name} is {value!r}, and was {values_before[name]!r}; begin a new run for that"
        for name, value in config.as_dict().items()
        if name not in MAY_CHANGE and value != values_before[name]
    ]
    raise_problems(OptionError, "a resumed run keeps its choices", problems)


def read_values(file: Path) -> dict[str, Any]:
    """Read the keys and values of a run file, unchecked.

    Raises:
        OptionError: The file is missing, not JSON, or holds no keys and values.
    """
    try:
        values = read_json(file)
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
    """Build a configuration from plain values, each checked against the type of its field.

    Raises:
        OptionError: With every key and value that is wrong.
    """
    hints = typing.get_type_hints(RunConfig)
    problems = wrong_options(values, hints, hints, kind="key")
    problems += [
        f"{k} is {v!r}; write it without a NUL" for k, v in values.items() if "\0" in str(v)
    ]
    if problems:
        # Options come and go between versions.
        known = values.keys() <= hints.keys()
        title = f"cannot use {where}" + ("" if known else " (of another version of Hocket?)")
        raise OptionError(format_problems(title, problems))
    paths = {"data_dir", "run_dir"}
    checked: dict[str, Any] = {
        k: Path(v).expanduser() if k in paths and v is not None else v
        for k, v in values.items()
    }
    return RunConfig(**checked)


def require_writable(option: str, file: Path) -> None:
    """Refuse a file that could not be written later, before the work that it is to hold.

    Raises:
        OptionError: It is a folder or a device, or its folder is missing or read-only.
    """
    if os.path.lexists(file) and not file.is_file():
        problem = "it is not a regular file"
    elif not file.parent.is_dir():
        problem = f"there is no folder {str(file.parent)!r}"
    elif not os.access(file if os.path.exists(file) else file.parent, os.W_OK):
        problem = "it or its folder is read-only"
    else:
        return
    raise OptionError(f"{option} is {str(file)!r}, and {problem}; name another file")


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file atomically: a reader finds the old file or the new one."""
    write_text_atomically(file, json.dumps(plain_values(value), indent=2) + "\n")


def plain_values(value: Any) -> Any:
    """Convert a value to JSON types: paths to text, NaN and infinity to null."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
