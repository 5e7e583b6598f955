"""Update of a stage's weights."""

from hocket.stage.core import StageCore
from hocket.stage.report import ActionReport


def update(core: StageCore, batch: int) -> ActionReport:
    """Update the weights, and skip that if no batch since the last update has a gradient.

    Args:
        core: The stage.
        batch: Number of the last batch of the update.
    """
    epoch = core.epochs[batch]
    core.epochs = {b: e for b, e in core.epochs.items() if b > batch}
    version = core.updater.version
    core.weights.before_update()
    if not core.updater.accumulator.count:
        return ActionReport(epoch, version, skipped=True)
    core.gradients = []
    lr = core.updater.update(epoch)
    core.untrained.warn_of_unfrozen()
    core.linearizer.after_update()
    return ActionReport(epoch, version, lr=lr)
