"""Schedules of learning rates that do not suit the length of a training."""

from collections.abc import Sequence

from torch.optim import lr_scheduler

from hocket.errors import warn
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage


def warn_of_slow_rates(
    setup: Setup, stages: Sequence[Stage], epochs: int, batches: int
) -> None:
    """Warn of a warm-up without an end, and of epochs counted by a schedule of updates.

    Args:
        setup: Options that all stages share.
        stages: Stages of this process.
        epochs: Epochs that come.
        batches: Batches in them.
    """
    # Compare the warm-up with the updates that come.
    updates = batches // setup.method.accumulate
    end = stages[0].updater.version + updates
    if 0 < end <= setup.warmup_updates:
        warn(
            f"warmup_updates is {setup.warmup_updates}, and this fit ends after {end} updates, "
            "before the learning rate has risen; give fewer"
        )
    # Compare the schedule with them; many more steps are a training that is cut short.
    steps = max(_count_steps(stage.updater.scheduler) for stage in stages)
    unsuited = 2 * epochs < updates <= steps <= updates + max(1, updates // 10)
    if setup.scheduler_unit == "epoch" and unsuited:
        warn(
            f"the scheduler counts epochs, of which there are {epochs}, and its schedule has "
            f"{steps} steps, so the learning rate hardly changes; give "
            "scheduler_unit='update', or a schedule of as many steps as epochs",
        )


def _count_steps(scheduler: object) -> int:
    """Return the steps of one of PyTorch's schedules; 0 if it has no end that is known."""
    parts: list[object] = getattr(scheduler, "_schedulers", [])
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        return sum(scheduler._milestones[-1:]) + _count_steps(parts[-1])
    numbers = [
        getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")
    ]
    milestones = getattr(scheduler, "milestones", ())
    known: list[int] = [*(n for n in numbers if isinstance(n, int)), *milestones]
    return max([0, *known, *map(_count_steps, parts)])
