"""The updaters of a stage, with the optimizers and schedulers of the user."""

from collections.abc import Sequence

from hocket.optim.factory import NamedParameters, build_optimizer, build_scheduler
from hocket.options.common_options import Reduce
from hocket.remedies.remedy import Remedy, Weights, attach_remedies
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.update.accumulate import as_clipping
from hocket.stage.update.untrained import UntrainedWeights
from hocket.stage.update.updater import Updater


def build_updaters(
    setup: Setup, parts: StageParts
) -> tuple[Updater, Updater, UntrainedWeights]:
    """Build the updaters of the layers and of a network that learns from targets.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.

    Returns:
        Both updaters, and the weights that they leave out.

    Raises:
        OptionError: The optimizer or the scheduler is not one for a stage.
    """
    # All weights, by their names in the network.
    method, deferred = setup.method, parts.signal.learns_from_gradient
    layers = list(parts.names.of_parameters(parts.module))
    auxiliary = [
        (f"signal of stage {parts.index}: {name}", parameter)
        for name, parameter in parts.signal_network.named_parameters()
    ]
    weights = [(name, parameter) for name, parameter in layers if parameter.requires_grad]

    # A factor for the first stage, if the method has one.
    first = parts.index == 0 and parts.count > 1
    first_rate = method.first_stage_rate if first else 1.0

    def build(
        parameters: NamedParameters,
        reduce: Reduce = "mean",
        lr_factor: float = 1.0,
        remedies: Sequence[Remedy] = (),
    ) -> Updater:
        trained = [parameter for _, parameter in parameters]
        # Without weights the user's functions are not called.
        optimizer = scheduler = attached = None
        if parameters:
            optimizer = build_optimizer(setup.optimizer, parameters, parts.index, parts.count)
            stage = method.stage_info(parts.index, parts.count)
            attached = attach_remedies(remedies, stage, Weights(trained, optimizer))
            if setup.scheduler is not None:
                by_epochs = setup.scheduler_unit == "epoch" and not method.free_running
                scheduler = build_scheduler(
                    setup.scheduler, optimizer, parts.index, has_evaluations=by_epochs
                )
        return Updater(
            trained,
            optimizer,
            scheduler,
            scheduler_unit=setup.scheduler_unit,
            scheduler_start=setup.warmup_updates,
            reduce=reduce,
            lr_factor=lambda update: setup.warmup_lr_factor(update) * lr_factor,
            build_reduction=parts.reduction,
            clip=as_clipping(setup.clip),
            remedies=attached,
        )

    # The network of the signal has an updater for itself if it learns from targets.
    updater = build(
        weights if deferred else weights + auxiliary,
        method.reduce,
        first_rate,
        method.remedies,
    )
    signal_updater = build(auxiliary if deferred else [])
    optimizers = (updater.optimizer, signal_updater.optimizer)
    return updater, signal_updater, UntrainedWeights(layers + auxiliary, optimizers)
