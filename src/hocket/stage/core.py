"""Everything that one stage holds, in one record that its actions share."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from hocket.distributed.replicas.meetings import Meetings
from hocket.optim.factory import NamedParameters, build_optimizer, build_scheduler
from hocket.options.common_options import Reduce
from hocket.remedies.remedy import Remedy, StageInfo, Weights, attach_remedies
from hocket.stage.contexts import PassContexts
from hocket.stage.finite.late_check import LateCheck
from hocket.stage.finite.nonfinite import NonFiniteCheck
from hocket.stage.graphs.recorder import GraphRecorder, build_recorder
from hocket.stage.graphs.runner import Runner, build_runner
from hocket.stage.graphs.step import ReplayedStep
from hocket.stage.in_flight import DeferredTarget, InFlight
from hocket.stage.late_gradients.build import build_linearizer
from hocket.stage.late_gradients.compiled import CompiledLayers
from hocket.stage.late_gradients.linearizer import Linearizer, StageLayers
from hocket.stage.layers.compatibility import ForbidForward
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.layers.module_tensors import ModuleTensors
from hocket.stage.layers.reversible import inverts
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.update.bare_step import do_step
from hocket.stage.update.clipping import as_clipping
from hocket.stage.update.loss_scale import LossScale
from hocket.stage.update.untrained import UntrainedWeights
from hocket.stage.update.updater import Updater, copy_numbers
from hocket.stage.weights.forward_check import ForwardCheck
from hocket.stage.weights.stage_weights import StageWeights, build_weights


@dataclass(frozen=True, kw_only=True)
class StageChecks:
    """Checks of what a stage computes.

    Attributes:
        layers: Search for NaN and infinity in outputs, gradients and buffers of the layers.
        signal: The same for the network of the signal.
        late: The same once in several ticks, if the search is postponed.
        forward: Check that forwards leave alone what they have to.
        inner_forward: Context manager for a backward that must forward nothing; None if it may.
        foreign_weights: Weights of other stages by name, which the loss must not use; empty
            once the first backward from a loss has used none.
    """

    layers: NonFiniteCheck
    signal: NonFiniteCheck
    late: LateCheck
    forward: ForwardCheck
    inner_forward: ForbidForward | None
    foreign_weights: list[tuple[str, nn.Parameter]]


@dataclass(kw_only=True)
class StageCore:
    """Everything that one stage holds; `hocket.stage.passes` has its actions.

    Attributes:
        setup: Options that all stages share.
        parts: Layers, signal and ports of this stage.
        layers: Known facts about the layers.
        signal_layers: Known facts about the network of the signal.
        tensors: Weights and buffers of the layers.
        contexts: Random numbers and precision of the passes.
        updater: Updater of the layers.
        signal_updater: Updater of a network that learns from targets.
        trained: Weights of both updaters.
        untrained: Weights that both leave out.
        linearizer: Keeper of graphs from the forwards to the backwards.
        weights: Weights that each action meets.
        loss_scale: Factor on the backward.
        checks: Checks of what the stage computes.
        runner: Runs what the actions compute.
        in_flight: Batches between their forward and their backward.
        meetings: Rare meetings with other replicas; None if there are none.
        deferred_targets: Batches whose targets have not come back yet.
        epochs: Epoch of each batch whose update is to come.
        gradients: Gradients of the last backward, for watchers; the update lets them go.
    """

    setup: Setup
    parts: StageParts
    layers: KnownLayers
    signal_layers: KnownLayers
    tensors: ModuleTensors
    contexts: PassContexts
    updater: Updater
    signal_updater: Updater
    trained: tuple[nn.Parameter, ...]
    untrained: UntrainedWeights
    linearizer: Linearizer
    weights: StageWeights
    loss_scale: LossScale
    checks: StageChecks
    runner: Runner
    in_flight: InFlight
    meetings: Meetings | None
    deferred_targets: dict[int, DeferredTarget] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    gradients: list[Tensor | None] = field(default_factory=list)


def build_core(setup: Setup, parts: StageParts) -> StageCore:
    """Build what a stage holds before its first action.

    Raises:
        OptionError: The layers, the optimizer or the scheduler are not ones for a stage.
    """
    method, layers = setup.method, KnownLayers(parts.module)
    recorder = build_recorder(setup.device) if setup.cuda_graphs else None
    updater, signal_updater, untrained = build_updaters(setup, parts, recorder)

    # Graphs, and the weights that forwards and backwards meet.
    linearizer = build_linearizer(
        method,
        setup.graph_delay(parts.index, parts.count),
        StageLayers(
            known=layers,
            compiled=CompiledLayers(setup.compile, setup, parts) if setup.compile else None,
            names=parts.names,
            trained=updater.parameters,
            # Without delay no batch is in flight between two ticks.
            keep_states=setup.resumable and method.delay(parts.index, parts.count) > 0,
        ),
        inverts=inverts(method, parts.module, parts.index, parts.count),
    )
    in_flight: InFlight = {}
    weights = build_weights(method, parts, updater, linearizer, in_flight)

    # Checks of layers and signal.
    modules, updaters = (parts.module, parts.signal_network), (updater, signal_updater)
    own = {weight for module in modules for weight in module.parameters()}
    late = LateCheck(setup.ticks_per_check, modules, updaters)
    of_layers, of_signal = (
        NonFiniteCheck(module, its_updater, setup.on_nan, late, parts.names)
        for module, its_updater in zip(modules, updaters, strict=True)
    )
    checks = StageChecks(
        layers=of_layers,
        signal=of_signal,
        late=late,
        forward=ForwardCheck(setup, parts, layers, weights.stand_in),
        inner_forward=ForbidForward(parts.index) if linearizer.forbids_inner_forward else None,
        foreign_weights=[(n, p) for p, n in parts.names.parameters.items() if p not in own],
    )

    # Gradients of an earlier backward come from no batch of this training.
    for each in updaters:
        each.zero_grad()

    trained = (*updater.parameters, *signal_updater.parameters)
    return StageCore(
        setup=setup,
        parts=parts,
        layers=layers,
        signal_layers=KnownLayers(parts.signal_network),
        tensors=ModuleTensors(parts.module),
        contexts=PassContexts(setup, parts),
        updater=updater,
        signal_updater=signal_updater,
        trained=trained,
        untrained=untrained,
        linearizer=linearizer,
        weights=weights,
        loss_scale=setup.build_loss_scale(),
        checks=checks,
        runner=build_runner(setup, parts, trained, late, linearizer, recorder),
        in_flight=in_flight,
        meetings=parts.meetings(trained) if parts.meetings is not None else None,
    )


def build_updaters(
    setup: Setup, parts: StageParts, recorder: GraphRecorder | None
) -> tuple[Updater, Updater, UntrainedWeights]:
    """Build the updaters of the layers and of a network that learns from targets.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
        recorder: Recorder of steps; None to compute each.

    Returns:
        Both updaters, and the weights that they leave out.

    Raises:
        OptionError: The optimizer, the scheduler or a remedy is not one for a stage.
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
    first_rate = 1.0 if parts.index or parts.count == 1 else method.first_stage_rate
    first_updates = setup.warmup_updates + 1  # in which the rates rise

    def build(
        parameters: NamedParameters,
        reduce: Reduce = "mean",
        lr_factor: float = 1.0,
        remedies: Sequence[Remedy] = (),
    ) -> Updater:
        # Without weights the user's functions are not called.
        optimizer = scheduler = attached = None
        if parameters:
            optimizer = build_optimizer(setup.optimizer, parameters, parts.index, parts.count)
            staleness = method.staleness(parts.index, parts.count) + setup.replica_delay
            stage = StageInfo(parts.index, parts.count, staleness)
            if staleness:  # remedies act where gradients are late
                weights = Weights([weight for _, weight in parameters], optimizer)
                attached = attach_remedies(remedies, stage, weights)
            if setup.scheduler is not None:
                for group in optimizer.param_groups:  # one rate may be given to all stages
                    group.update(copy_numbers(group))
                by_epochs = setup.scheduler_unit == "epoch" and not method.free_running
                scheduler = build_scheduler(
                    setup.scheduler,
                    optimizer,
                    parts.index,
                    has_evaluations=by_epochs,
                    metric=setup.plateau_metric,
                )
        return Updater(
            parameters,
            optimizer,
            scheduler,
            scheduler_unit=setup.scheduler_unit,
            scheduler_start=setup.warmup_updates,
            reduce=reduce,
            lr_factor=lambda update: min(1.0, (update + 1) / first_updates) * lr_factor,
            build_reduction=parts.reduction,
            replica_delay=setup.replica_delay,
            clip=as_clipping(setup.clip),
            step=do_step if recorder is None else ReplayedStep(recorder),
            remedies=attached,
        )

    # The network of the signal has an updater for itself if it learns from targets.
    updater = build(
        weights if deferred else weights + auxiliary, method.reduce, first_rate, method.remedies
    )
    signal_updater = build(auxiliary if deferred else [])
    optimizers = (updater.optimizer, signal_updater.optimizer)
    return updater, signal_updater, UntrainedWeights(layers + auxiliary, optimizers)
