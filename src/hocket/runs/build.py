"""From the words of a run to the things they name: network, optimizer, scheduler, plan."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from hocket import methods, zoo
from hocket.partition import Plan
from hocket.data import Data
from hocket.errors import OptionError, listed, unknown
from hocket.methods.method import Method
from hocket.options import Named
from hocket.runs.user_network import UserNetwork
from hocket.runs.config import RunConfig
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory


def parse_method(text: str) -> Method:
    """The method that is written ``name:option=value,option=value``.

    Raises:
        OptionError: The method or one of its options does not exist, or is out of range.
    """
    asked = Named.parse(text)
    return methods.build_method(asked.name, **asked.options)


def build_network(run: RunConfig, data: Data) -> nn.Module:
    """The network of a run, made to fit its data; the seed decides its weights.

    Raises:
        OptionError: The network or one of its options does not exist.
    """
    own = UserNetwork.parse(run.network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        if own is not None:
            return own.build(data.shape, data.classes)
        asked = Named.parse(run.network)
        try:
            return zoo.create_fitted(asked.name, data.shape, data.classes, **asked.options)
        except RuntimeError as error:
            raise OptionError(
                f"PyTorch refuses the network {run.network!r}: {error}"
            ) from error


def network_name(run: RunConfig) -> str:
    """The name of the run's network, without options."""
    own = UserNetwork.parse(run.network)
    return own.function.name if own is not None else Named.parse(run.network).name


def build_plan(run: RunConfig) -> int | Plan:
    """Where to cut: a number of stages to balance, or named cuts, or those of a plan's file.

    Raises:
        OptionError: The cuts do not make as many stages as the run asks for, or the file is no
            plan.
    """
    if run.plan == "balanced":
        return run.stages
    if run.plan == "paper":
        if run.stages == 1:
            return Plan(())
        return Plan(zoo.paper_plan(network_name(run), run.stages))
    if run.plan.endswith(".json"):
        plan = Plan.read(Path(run.plan))
        advice = f"give --stages {plan.stages}, or plan for {run.stages}"
    else:
        plan = Plan(tuple(name.strip() for name in run.plan.split(",")))
        advice = "name one layer less than there are stages"
    if plan.stages != run.stages:
        raise OptionError(
            f"plan {run.plan!r} makes {plan.stages} stages, but stages is {run.stages}; "
            f"{advice}"
        )
    return plan


def parse_stage_speeds(run: RunConfig) -> tuple[float, ...] | None:
    """How fast each stage is; None where nothing is said.

    Raises:
        OptionError: They are no numbers.
    """
    if run.stage_speeds == "equal":
        return None
    try:
        return tuple(float(rate) for rate in run.stage_speeds.split(","))
    except ValueError as error:
        raise OptionError(
            f"rates is {run.stage_speeds!r}; write a number for each stage: 1,1,0.5"
        ) from error


def build_optimizer(run: RunConfig) -> OptimizerFactory:
    """What builds a stage's optimizer.

    Raises:
        OptionError: torch.optim has no such optimizer, or it refuses the options.
    """
    asked = Named.parse(run.optimizer)
    build = _member(optim, optim.Optimizer, "optimizer", asked)
    trial = nn.Parameter(torch.zeros(1))
    trial.grad = torch.ones(1)
    _tried("optimizer", asked, lambda: build([trial], **asked.options).step())
    return lambda parameters: build(parameters, **asked.options)


def build_scheduler(run: RunConfig) -> SchedulerFactory | None:
    """What builds a stage's scheduler, with the warm-up in front; None if there is none.

    Raises:
        OptionError: torch has no such scheduler, or it refuses the options.
    """
    makers: list[SchedulerFactory] = []
    if run.warmup_epochs:
        makers.append(
            lambda optimizer: lr_scheduler.ConstantLR(
                optimizer, factor=run.warmup_factor, total_iters=run.warmup_epochs
            )
        )
    if run.scheduler != "none":
        asked = Named.parse(run.scheduler)
        build = _member(lr_scheduler, lr_scheduler.LRScheduler, "scheduler", asked)
        makers.append(lambda optimizer: build(optimizer, **asked.options))
        _tried("scheduler", asked, lambda: _try_scheduler(makers[-1]))
    if run.warmup_epochs and run.scheduler_unit == "update":
        raise OptionError(
            "warmup_epochs counts epochs, but scheduler_unit is 'update'; use one of the two"
        )
    if not makers:
        return None
    if len(makers) == 1:
        return makers[0]
    return lambda optimizer: lr_scheduler.ChainedScheduler(
        [make(optimizer) for make in makers], optimizer
    )


def _member(module: object, base: type, what: str, asked: Named) -> Callable[..., Any]:
    known = {
        name: member
        for name, member in vars(module).items()
        if inspect.isclass(member) and issubclass(member, base) and member is not base
        if not name.startswith("_")
    }
    if asked.name not in known:
        raise OptionError(unknown(what, asked.name, sorted(known)))
    return known[asked.name]


def _try_scheduler(make: SchedulerFactory) -> None:
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make(optimizer)
    optimizer.step()
    if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):  # refused where it is used
        scheduler.step()


def _tried(what: str, asked: Named, build: Callable[[], object]) -> None:
    """Build it once on a trial weight, so that a wrong option is found before anything runs."""
    try:
        build()
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise OptionError(
            listed(f"PyTorch refuses the {what} {str(asked)!r}", [str(error)])
        ) from error
