"""Warnings of weights that are not trained, and of options that change nothing."""

from collections.abc import Sequence
from math import inf

from torch import nn, optim

from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import warn
from hocket.optim.muon import MuonAdamW
from hocket.optim.rotated_adam import RotatedAdam
from hocket.remedies.displacement import LIONS
from hocket.signals import Delayed
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.stage.update.clipping import as_clipping
from hocket.stage.update.untrained import describe_names
from hocket.training.session.cut_network import CutNetwork

SCALE_FREE = (
    optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.Adam, optim.Adamax, optim.AdamW,
    optim.Muon, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SparseAdam,
    MuonAdamW, RotatedAdam,
)  # fmt: skip


def warn_of_no_effect(
    setup: Setup, cut: CutNetwork, stages: Sequence[Stage], world: World | SoloWorld
) -> None:
    """Warn of weights without an optimizer, and let the main process warn of options.

    Args:
        setup: Options of the training.
        cut: The network and its stages.
        stages: Stages of this process.
        world: This process among the others.
    """
    # Weights of the stages here and of the loss that no optimizer has.
    names = [name for stage in stages for name in stage.untrained.names]
    loss = setup.loss
    owner = loss if isinstance(loss, nn.Module) else getattr(loss, "__self__", None)
    if world.is_main and isinstance(owner, nn.Module):
        known = set(cut.network.parameters())
        names += [
            f"loss.{name}"
            for name, parameter in owner.named_parameters()
            if parameter.requires_grad and parameter not in known
        ]
    if names and world.replica == 0:
        warn(
            f"{describe_names(names)} get gradients and have no optimizer, so they stay as "
            "they are; give them to the optimizer, or freeze them by requires_grad_(False); "
            "weights of a loss are trained if they are moved into the network",
        )
    if not world.is_main:
        return

    # A codec that makes gradients biased.
    method, count = setup.method, cut.count
    if setup.codec.biases_gradients and method.signal.needs_gradient:
        warn(
            f"the codec {setup.codec} sends other activations than method {method.name!r} "
            "back-propagates through: a stage applies the gradient at what the next one "
            "received as if it were that at its own output, so that all stages but the last "
            "learn from biased gradients; methods with local losses, such as dgl, do not",
        )

    # Remedies that change nothing, as no gradient is late enough.
    late = setup.replica_delay
    never = count == 1 and not late
    idle = [remedy.name for remedy in method.remedies if remedy.slows or never]
    if idle and all(method.staleness(stage, count) + late <= 1 for stage in range(count)):
        warn(
            f"{' and '.join(idle)} changes nothing: on {count} stage{'s'[: count - 1]} of "
            f"{method.name!r} no gradient is late by more than one update in the mean; use "
            "more stages, or leave it out",
        )
    _warn_of_cancelled_scales(setup, stages, count - 1)


def _warn_of_cancelled_scales(setup: Setup, stages: Sequence[Stage], last: int) -> None:
    """Warn of changes of the size of gradients that the optimizers divide out again."""
    # Kinds of optimizers that do so, by stages.
    kinds = {}
    for stage in stages:
        kind = type(stage.updater.optimizer)
        is_lion = f"{kind.__module__}.{kind.__qualname__}" in LIONS
        if is_lion or issubclass(kind, SCALE_FREE):
            kinds[stage.index] = kind.__name__

    # A sum in place of a mean, unless the sum reaches a limit that the mean does not reach.
    method, clipping = setup.method, as_clipping(setup.clip)
    is_limited = clipping.what == "update" and clipping.norm < inf
    of_all = ", ".join(sorted(set(kinds.values())))
    if of_all and method.reduce == "sum" and method.accumulate > 1 and not is_limited:
        warn(
            f"reduce='sum' of {method.accumulate} gradients has the effect of their mean under "
            f"{of_all}, whose steps do not depend on the scale of the gradient; use SGD, or "
            "leave reduce at 'mean'"
        )

    # Factors on late gradients, and remedies that resize them.
    signal = method.signal
    of_early = ", ".join(sorted({kind for k, kind in kinds.items() if k < last}))
    if not of_early or not isinstance(signal, Delayed):
        return
    if signal.shrink != 1:
        warn(
            f"shrink={signal.shrink} cancels under {of_early}, whose steps do not depend on "
            "the scale of the gradient; use SGD, or leave shrink at 1",
        )
    if names := [type(remedy).__name__ for remedy in method.remedies if remedy.resizes]:
        warn(
            f"{', '.join(names)} changes little but the size of the elements of gradients, and "
            f"{of_early} divides most of that out again; use SGD, or leave it out",
        )
