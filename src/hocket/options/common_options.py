"""Options that a trainer and a run file have in common: plain values, each with one text.

This module imports no PyTorch, so that ``hocket train --help`` answers at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hocket.options.hints import wrong_fields
from hocket.options.ranges import MAX_SEED, MAX_TIMEOUT_S, Range, out_of_range

Reduce = Literal["mean", "sum"]
"""What an update is made of: the mean or the sum of the accumulated gradients."""
SchedulerUnit = Literal["epoch", "update"]
Precision = Literal["fp32", "bf16", "fp16"]
Compiler = Literal["inductor", "aot_eager"]
BatchNorm = Literal["local", "shared"]
OnNaN = Literal["stop", "skip"]

RANGES = {
    "seed": Range(least=0, most=MAX_SEED),
    "replicas": Range(least=1),
    "replica_delay": Range(least=0),
    "check_every": Range(least=1),
    "timeout_s": Range(above=0, most=MAX_TIMEOUT_S),
    "slow_timeout_s": Range(above=0, most=MAX_TIMEOUT_S),
    "warmup_updates": Range(least=0),
    "gradient_error_every": Range(least=0),
}
"""Ranges of the options below."""
NEEDED = {
    "scheduler_unit": "scheduler",
    "plateau_metric": "scheduler",
    "batchnorm": "replicas",
    "replica_delay": "replicas",
    "meet": "replicas",
}
"""Options that have no effect without another one."""
COMMON_GROUPS = {
    "scheduler_unit": "Optimization",
    "seed": "Computation",
    "checksum": "Delays, packets and speeds",
    "replicas": "Replicas and waits",
    "record_timeline": "Records",
    "on_nan": "Checkpoints and NaN",
}
"""Title of each group of options for help, by those that it begins with."""


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options that a trainer and a run file have in common."""

    scheduler_unit: SchedulerUnit = "epoch"
    """Unit that the scheduler counts: epoch or update."""
    plateau_metric: str = "test_loss"
    """Result of each epoch that ReduceLROnPlateau follows: test_loss, test_error, train_loss,
    or a metric of the trainer."""
    warmup_updates: int = 0
    """Number W of first updates of a stage in which the learning rates rise: update u (from 0)
    has (u + 1) / (W + 1) of the scheduler's. A scheduler that counts updates begins after
    them."""
    clip: float | str | None = None
    """Largest norm of a stage's gradient: 1.0 for the gradient of each update, batch:1.0 for
    the gradient of each batch before it is accumulated."""
    seed: int = 0
    """Seed of the stages' randomness, such as dropout, and of the initial weights of heads; in
    a run also of the network, the order of the data and augmentation."""
    precision: Precision = "fp32"
    """Precision to compute in: fp32, or bf16 or fp16 with autocast; fp16 has a loss scale."""
    channels_last: bool = False
    """Keep 4-dimensional tensors, such as images, in the channels-last memory format, in which
    convolutions are faster."""
    compile: bool | Compiler | None = False
    """Compile the layers of each stage with torch.compile, for training. A program may name the
    backend: inductor, which is the default, or aot_eager."""
    streams: bool = False
    """Let the stages of one process compute on separate streams of a GPU, so that small stages
    overlap."""
    cuda_graphs: bool = False
    """Capture what the stages of one process compute in CUDA graphs, and replay these: faster
    where steps are short. Tried with a recorder on CPUs, and not yet on a GPU."""
    checksum: bool = True
    """Send tensors to other processes with a checksum."""
    replicas: int = 1
    """Number of processes that share the work of each stage."""
    replica_delay: int = 0
    """Updates by which the sum of the replicas' gradients is late: with 1 the sum of update t
    is applied in update t + 1, and travels during its work."""
    meet: str | None = None
    """Rare meetings of replicas that otherwise train alone, with no sum for each batch:
    local-sgd:every=64, or diloco:every=64,outer_lr=0.7,outer_momentum=0.9. With fragments=4
    parts of the weights meet in turn, and overlap=8 applies a result 8 updates later."""
    batchnorm: BatchNorm = "local"
    """Inputs over which BatchNorm takes its statistics where replicas share a batch: local for
    the inputs of each replica, shared for all of them. A subclass that computes more than
    BatchNorm cannot share them."""
    timeout_s: float = 60.0
    """Seconds that an action of a training step may let another process wait; more is a
    hang."""
    slow_timeout_s: float = 1800.0
    """The same limit for all else: starting, reading data, evaluation, checkpoints, and the
    first action of each kind, which may compile."""
    record_timeline: bool = False
    """Keep the time span of every action; a run writes timeline.json into its folder, for
    Perfetto and `hocket draw --timeline`."""
    gradient_error_every: int = 0
    """Compare the gradients of every n-th batch with the true ones, at the cost of another
    forward and backward of the whole network, in one process; 0 for none."""
    on_nan: OnNaN = "stop"
    """Reaction to a batch that makes something NaN or infinite: stop the training, or skip the
    batch."""
    check_every: int | None = None
    """Ticks after which a stage looks for NaN and infinity. With 1 it finds a fault at once;
    with more no tick waits for the device, and the stage goes back to its weights of the last
    look. By default 1 on a CPU, to skip batches and with fp16, and 50 on a GPU."""

    def find_problems(
        self, ranges: Mapping[str, Range] = RANGES, needed: Mapping[str, str] = NEEDED
    ) -> list[str]:
        """Return one problem for each value that is wrong, alone or together with another."""
        mistyped = wrong_fields(self)
        problems = mistyped + out_of_range(self, ranges) + self._find_idle(needed)
        if mistyped:  # values that cannot be compared
            return problems
        if self.slow_timeout_s < self.timeout_s:
            problems.append(
                f"slow_timeout_s is {self.slow_timeout_s:g}, and timeout_s, the limit of a "
                f"training step, is {self.timeout_s:g}; use at least as many seconds"
            )
        if self.replicas > 1 and self.on_nan != "stop":
            problems.append(
                f"on_nan is {self.on_nan!r}, and {self.replicas} replicas that share each "
                "batch do not agree on which to skip; use 'stop', or one replica"
            )
        met = self.meet not in (None, "none")
        if met and self.replica_delay:
            problems.append(
                f"replica_delay is {self.replica_delay} and meet is given, but replicas that "
                "meet rarely have no sum of gradients to delay; leave one of them out"
            )
        if met and self.batchnorm == "shared":
            problems.append(
                "batchnorm is 'shared' and meet is given, but replicas that train alone "
                "cannot wait for each other in each BatchNorm; leave batchnorm at 'local'"
            )
        if self.compile and self.batchnorm == "shared":
            problems.append(
                "batchnorm is 'shared', whose sums over the replicas cannot be compiled; leave "
                "compile out, or batchnorm at 'local'"
            )
        problems += self._find_uncapturable()
        every = self.check_every or 1
        if every > 1 and self.on_nan == "skip":
            problems.append(
                f"check_every is {every} and on_nan is 'skip', but a batch can be skipped only "
                "before it is learned from; leave check_every at 1, or on_nan at 'stop'"
            )
        if self.precision == "fp16" and (every > 1 or self.replicas > 1):
            problems.append(
                f"precision is 'fp16', check_every is {every} and replicas is {self.replicas}, "
                "but a batch whose gradient overflows has to be skipped before it is learned "
                "from, by all who share it; leave both at 1, or use 'bf16', which needs no "
                "loss scale"
            )
        return problems

    def _find_idle(self, needed: Mapping[str, str]) -> list[str]:
        """Return one problem for each option that was given without the one that it needs."""
        default = type(self)
        return [
            f"{name} is {getattr(self, name)!r}, which has no effect without {other}; give both"
            for name, other in needed.items()
            if getattr(self, name) != getattr(default, name)
            and getattr(self, other) == getattr(default, other)
        ]

    def _find_uncapturable(self) -> list[str]:
        """Return one problem for each option that CUDA graphs cannot have."""
        wrong = {
            "streams": self.streams,
            "compile": bool(self.compile),
            "precision": self.precision == "fp16",
            "on_nan": self.on_nan == "skip",
            "check_every": self.check_every == 1,
            "replicas": self.replicas > 1,
        }
        return [
            f"{name} is {getattr(self, name)!r}, which CUDA graphs cannot capture; leave "
            "cuda_graphs or it out"
            for name, is_wrong in wrong.items()
            if is_wrong and self.cuda_graphs
        ]
