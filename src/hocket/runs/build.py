"""Parts of a training, built from the text of its configuration."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from hocket import data as datasets
from hocket import zoo
from hocket.data import Data
from hocket.errors import OptionError, format_problems, unknown_name
from hocket.options import Named
from hocket.partition import Plan
from hocket.runs.config import RunConfig
from hocket.runs.user_network import UserNetwork
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory


def load_data(config: RunConfig) -> Data:
    """Load the data set of a configuration.

    Raises:
        OptionError: The data set or one of its options does not exist.
        DataError: Its files are missing or damaged.
    """
    named = Named.parse(config.data)
    return datasets.load(
        named.name,
        data_dir=config.data_dir,
        batch_size=config.batch_size,
        seed=config.seed,
        **named.options,
    )


def build_network(config: RunConfig, data: Data) -> nn.Module:
    """Build the network of a configuration for its data; the seed decides its weights.

    Raises:
        OptionError: The network or one of its options does not exist.
    """
    user_network = UserNetwork.parse(config.network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if user_network is not None:
            return user_network.build(data.shape, data.classes)
        named = Named.parse(config.network)
        try:
            return zoo.create_fitted(named.name, data.shape, data.classes, **named.options)
        except RuntimeError as error:
            raise OptionError(
                f"PyTorch refuses the network {config.network!r}: {error}"
            ) from error


def network_name(config: RunConfig) -> str:
    """Return the name of the network, without options."""
    user_network = UserNetwork.parse(config.network)
    if user_network is not None:
        return user_network.function.name
    return Named.parse(config.network).name


def build_plan(config: RunConfig) -> int | Plan:
    """Return the number of stages to balance, or the plan that is named, listed or in a file.

    Raises:
        OptionError: The plan has another number of stages, or its file cannot be read.
    """
    if config.plan == "balanced":
        return config.stages
    if config.plan == "paper":
        if config.stages == 1:
            return Plan(())
        return Plan(zoo.paper_plan(network_name(config), config.stages))
    if config.plan.endswith(".json"):
        plan = Plan.read(Path(config.plan))
        advice = f"give --stages {plan.stages}, or plan for {config.stages}"
    else:
        plan = Plan(tuple(name.strip() for name in config.plan.split(",")))
        advice = "name one layer less than there are stages"
    if plan.stages != config.stages:
        raise OptionError(
            f"plan {config.plan!r} makes {plan.stages} stages, but stages is {config.stages}; "
            f"{advice}"
        )
    return plan


def parse_stage_speeds(config: RunConfig) -> tuple[float, ...] | None:
    """Return the speed of each stage; None if all are equal.

    Raises:
        OptionError: They are no numbers.
    """
    if config.stage_speeds == "equal":
        return None
    try:
        return tuple(float(speed) for speed in config.stage_speeds.split(","))
    except ValueError as error:
        raise OptionError(
            f"stage_speeds is {config.stage_speeds!r}; write a number for each stage: 1,1,0.5"
        ) from error


def build_optimizer(config: RunConfig) -> OptimizerFactory:
    """Return a function that builds the optimizer of a stage.

    Raises:
        OptionError: torch.optim has no such optimizer, or it refuses the options.
    """
    named = Named.parse(config.optimizer)
    optimizer_class = _find_class(optim, optim.Optimizer, "optimizer", named)
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    _try("optimizer", named, lambda: optimizer_class([weight], **named.options).step())
    return lambda parameters: optimizer_class(parameters, **named.options)


def build_scheduler(config: RunConfig) -> SchedulerFactory | None:
    """Return a function that builds the scheduler of a stage, with the warm-up; None for none.

    Raises:
        OptionError: torch has no such scheduler, or it refuses the options.
    """
    factories: list[SchedulerFactory] = []
    if config.warmup_epochs:
        factories.append(
            lambda optimizer: lr_scheduler.ConstantLR(
                optimizer, factor=config.warmup_factor, total_iters=config.warmup_epochs
            )
        )
    if config.scheduler != "none":
        named = Named.parse(config.scheduler)
        base = lr_scheduler.LRScheduler
        scheduler_class = _find_class(lr_scheduler, base, "scheduler", named)
        factories.append(lambda optimizer: scheduler_class(optimizer, **named.options))
        _try("scheduler", named, lambda: _step_scheduler(factories[-1]))
    if config.warmup_epochs and config.scheduler_unit == "update":
        raise OptionError(
            "warmup_epochs counts epochs, but scheduler_unit is 'update'; use one of the two"
        )
    if not factories:
        return None
    if len(factories) == 1:
        return factories[0]
    return lambda optimizer: lr_scheduler.ChainedScheduler(
        [build(optimizer) for build in factories], optimizer
    )


def _find_class(module: object, base: type, kind: str, named: Named) -> Callable[..., Any]:
    """Find the public subclass of a base class that is named.

    Raises:
        OptionError: There is none.
    """
    known = {
        name: member
        for name, member in vars(module).items()
        if inspect.isclass(member) and issubclass(member, base) and member is not base
        if not name.startswith("_")
    }
    if named.name not in known:
        raise OptionError(unknown_name(kind, named.name, sorted(known)))
    return known[named.name]


def _step_scheduler(factory: SchedulerFactory) -> None:
    """Build a scheduler and let it do one step."""
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = factory(optimizer)
    optimizer.step()
    if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):  # the stage refuses it
        scheduler.step()


def _try(kind: str, named: Named, trial: Callable[[], object]) -> None:
    """Run a trial with a single weight, so that a wrong option shows before the training.

    Raises:
        OptionError: The trial fails.
    """
    try:
        trial()
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise OptionError(
            format_problems(f"PyTorch refuses the {kind} {str(named)!r}", [str(error)])
        ) from error
