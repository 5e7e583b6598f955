"""Functions of the user that build the optimizer and the scheduler of a stage."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hocket.errors import OptionError

OptimizerFactory: TypeAlias = Callable[..., Optimizer]
"""Builds the optimizer of a stage from the list of its parameters.

The names of its arguments decide what else it gets: ``stage`` is the number of the stage, from
0, ``stages`` the number of stages, and ``named_parameters``, instead of the list, are
pairs of a name in the network and a parameter.
"""
SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]
NamedParameters: TypeAlias = Sequence[tuple[str, nn.Parameter]]

NEEDS_CLOSURE = (
    "calls the network again in its step (LBFGS and SAM do), which a stage cannot: the batch's "
    "gradient comes from other stages; use an optimizer whose step needs no closure"
)


def wrong_factories(
    optimizer: OptimizerFactory, scheduler: SchedulerFactory | None
) -> list[str]:
    """Return one problem for each of the two that cannot be called to build its object."""
    problems = _wrong_call("optimizer", optimizer, *_arguments(optimizer, (), 0, 1))
    if scheduler is not None:
        problems += _wrong_call("scheduler", scheduler, (None,), {})
    return problems


def build_optimizer(
    factory: OptimizerFactory, parameters: NamedParameters, stage: int, stages: int
) -> Optimizer:
    """Build the optimizer of a stage.

    Args:
        factory: Function of the user.
        parameters: Weights of the stage by their names in the network.
        stage: Number of the stage.
        stages: Number of stages.

    Raises:
        OptionError: It is no optimizer that can update these weights, and only these.
    """
    # Call the function of the user.
    positional, keywords = _arguments(factory, parameters, stage, stages)
    try:
        optimizer = factory(*positional, **keywords)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the optimizer of stage {stage} cannot be built: {error}") from error
    except AttributeError as error:
        raise OptionError(
            f"the optimizer of stage {stage} cannot be built: {error}; the function gets a "
            "list of the stage's parameters, not the network"
        ) from error

    # Refuse what cannot update these weights, and only these.
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise OptionError(
            f"the optimizer of stage {stage} is a {kind}; wanted a torch.optim.Optimizer"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise OptionError(f"the optimizer of stage {stage}, {kind}, {NEEDS_CLOSURE}")
    if any(group.get("lr") is None for group in optimizer.param_groups):
        raise OptionError(
            f"the optimizer of stage {stage}, {kind}, has weights without a rate 'lr'; "
            "it is logged and scheduled, so give each group one, such as 1.0"
        )
    own = {parameter for _, parameter in parameters}
    foreign = sum(p not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise OptionError(
            f"the optimizer of stage {stage} has {foreign} weights that are not in this stage, "
            "and that no checkpoint of it would hold; build it from the parameters that the "
            "function is given"
        )
    return optimizer


def build_scheduler(
    factory: SchedulerFactory,
    optimizer: Optimizer,
    stage: int,
    *,
    has_evaluations: bool,
    metric: str,
) -> LRScheduler:
    """Build the scheduler of a stage.

    Args:
        factory: Function of the user.
        optimizer: Optimizer of the stage.
        stage: Number of the stage.
        has_evaluations: True if the stage's schedulers count epochs that end with an
            evaluation.
        metric: Result of an epoch that ReduceLROnPlateau follows.

    Raises:
        OptionError: It is no scheduler of this optimizer, follows evaluations that there are
            none of, or follows a loss or an error upwards.
    """
    # Call the function of the user.
    try:
        scheduler = factory(optimizer)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the scheduler of stage {stage} cannot be built: {error}") from error

    # Refuse what is no scheduler of this optimizer.
    if not isinstance(scheduler, LRScheduler):
        raise OptionError(
            f"the scheduler of stage {stage} is a {type(scheduler).__name__}; wanted one of "
            "torch.optim.lr_scheduler"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise OptionError(
            f"the scheduler of stage {stage}, a {type(scheduler).__name__}, changes the rates "
            "of another optimizer; build it from the optimizer that the function is given"
        )

    # A scheduler that follows a metric needs its values; for others none may be named.
    if not isinstance(scheduler, ReduceLROnPlateau):
        if metric != "test_loss":
            raise OptionError(
                f"plateau_metric is {metric!r}, and the scheduler of stage {stage}, a "
                f"{type(scheduler).__name__}, follows no metric; leave plateau_metric out, or "
                "use ReduceLROnPlateau"
            )
        return scheduler
    if not has_evaluations:
        raise OptionError(
            "ReduceLROnPlateau follows the validation loss at the end of each epoch, so it "
            "wants scheduler_unit 'epoch', and stages that do not run freely"
        )
    if scheduler.mode == "max" and metric in ("test_loss", "test_error", "train_loss"):
        raise OptionError(
            f"ReduceLROnPlateau has mode 'max' and follows {metric}, which is better when it "
            "is less; leave mode at 'min', or name another plateau_metric"
        )
    return scheduler


def _arguments(
    factory: OptimizerFactory, parameters: NamedParameters, stage: int, stages: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that the signature of a factory asks for."""
    # The names of the arguments that are still to be given.
    wanted: set[str] = set()
    with suppress(TypeError, ValueError):  # it is no function, or one without a signature
        wanted = set(inspect.signature(factory).parameters)
    if isinstance(factory, partial):
        wanted -= factory.keywords.keys()
    places = {"stage": stage, "stages": stages}
    keywords: dict[str, Any] = {name: at for name, at in places.items() if name in wanted}
    if "named_parameters" in wanted:
        return (), keywords | {"named_parameters": list(parameters)}
    return ([parameter for _, parameter in parameters],), keywords


def _wrong_call(
    name: str, factory: Any, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> list[str]:
    """Return the reason why a factory cannot be called, if there is one."""
    example = {
        "optimizer": "lambda params: torch.optim.SGD(params, lr=0.1)",
        "scheduler": "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)",
    }[name]
    advice = f"each stage has its own, so give a function that builds it: {example}"
    if not callable(factory):
        return [f"{name} is an object of {type(factory).__name__}; {advice}"]
    try:
        inspect.signature(factory).bind(*positional, **keywords)
    except ValueError:  # a function without a signature
        return []
    except TypeError as error:
        return [f"{name} cannot be called for a stage: {error}; {advice}"]
    return []
