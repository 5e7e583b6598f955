"""Update of a stage's weights."""

from hocket.stage.core import StageCore
from hocket.stage.report import ActionReport
from hocket.stage.steps import Steps


def update(core: StageCore, batch: int) -> Steps[ActionReport]:
    """Update the weights, and skip that if no batch since the last update has a gradient.

    The second step needs the weights of all replicas, if they meet.

    If sums over replicas are late, this is the update with older gradients. After the last
    batch of all, the same action applies those that are left.
    """
    # Choose the gradients to update with.
    updater, meetings = core.updater, core.meetings
    epoch, version = core.epochs.get(batch), updater.version
    if epoch is not None:
        core.epochs = {b: e for b, e in core.epochs.items() if b > batch}
        core.weights.before_update()
    due = updater.due_epoch(epoch)
    if due is None:
        return ActionReport(epoch or 0, version, skipped=True)

    # Update, and meet the other replicas.
    core.gradients = []
    if meetings is not None:
        meetings.before_update()
    lr = updater.update(due)
    core.untrained.warn_of_unfrozen()
    if meetings is not None:
        meetings.begin(updater.version)
        yield
        meetings.complete()
    core.linearizer.after_update()
    return ActionReport(due, version, lr=lr)


def end_exchange(core: StageCore) -> Steps[None]:
    """Complete what is under way between the replicas of a stage, once no batch is in flight.

    The second step needs the weights of all replicas, if they meet.
    """
    signal_updater = core.signal_updater
    while (epoch := signal_updater.due_epoch(None)) is not None:
        signal_updater.update(epoch)
    if core.meetings is not None:
        core.meetings.begin_last()
        yield
        core.meetings.complete_last()
        core.linearizer.after_update()
