"""Parts of a training, built from the text of its configuration."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from hocket import data as datasets
from hocket import zoo
from hocket.data import Data
from hocket.errors import OptionError, format_problems, unknown_name
from hocket.files import read_json
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.methods.simulated.delays import (
    parse_extra_delay,
    parse_staleness,
    with_extra_delay,
    with_staleness,
)
from hocket.optim.factory import OptimizerFactory, SchedulerFactory
from hocket.optim.muon import MuonAdamW, muon
from hocket.optim.rotated_adam import RotatedAdam, rotated_adam
from hocket.options.hints import wrong_arguments, wrong_options
from hocket.options.named import Named, parse_numbers
from hocket.options.own_function import load_own
from hocket.partition import Plan
from hocket.runs.config import RunConfig

T = TypeVar("T")


def require_data(config: RunConfig) -> Named:
    """Check the data set of a configuration and its options without reading it; return both.

    Raises:
        OptionError: The data set or one of its options does not exist.
    """
    named = Named.parse(config.data)
    datasets.check_data(named.name, config.data_dir, **named.options)
    return named


def load_data(config: RunConfig) -> Data:
    """Load the data set of a configuration.

    Raises:
        OptionError: The data set or one of its options does not exist.
        DataError: Its files are missing or damaged.
    """
    named = require_data(config)  # before its options are next to those of the training
    return datasets.load(
        named.name,
        data_dir=config.data_dir,
        batch_size=config.batch_size,
        seed=config.seed,
        workers=config.workers,
        hold_out=config.hold_out,
        mixup=config.mixup,
        cutmix=config.cutmix,
        **named.options,
    )


def network_builder(config: RunConfig) -> Callable[[Data], nn.Module]:
    """Find the network of a configuration, before data are read, and return what builds it.

    The seed of the configuration decides the weights.

    Raises:
        OptionError: The network or one of its options does not exist.
    """
    named = Named.parse(config.network)
    function = zoo.NETWORKS.get(named.name) or load_own(
        "network", named.name, list(zoo.NETWORKS), nn.Module
    )
    if named.name in zoo.NETWORKS and (problems := wrong_arguments(function, named.options)):
        raise OptionError(format_problems(f"cannot build network {named.name!r}", problems))

    def build(data: Data) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            try:
                fitted = zoo.fitting(function, data.shape, data.classes)
                return function(**fitted | named.options)
            except RuntimeError as error:
                raise OptionError(
                    f"PyTorch refuses the network {config.network!r}: {error}"
                ) from error

    return build


KEPT_PLAN = "plan.json"
"""File of a run folder with the cuts of the network, for a training that is continued."""


def build_plan(config: RunConfig, previous_dir: Path | None = None) -> int | Plan:
    """Return the number of stages to balance, or the plan that is named, listed or in a file.

    Args:
        config: Choices of the training.
        previous_dir: Run folder of the same training before it was stopped, whose cuts stay;
            None for a new training.

    Raises:
        OptionError: The plan has another number of stages, or its file cannot be read.
    """
    # Balanced and published cuts.
    if config.plan == "balanced":
        if previous_dir is not None and (kept := previous_dir / KEPT_PLAN).exists():
            plan = Plan.read(kept)
            if plan.stages == config.stages:
                return plan
        return config.stages
    if config.plan == "paper":
        if config.stages == 1:
            return Plan(())
        return Plan(zoo.paper_plan(Named.parse(config.network).title, config.stages))
    # Cuts in a file, or by the names of layers.
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


def format_method_options(method: str, extra_delay: Sequence[int], codec: str) -> str:
    """Return the options of `hocket train` for what a plan recommends.

    Args:
        method: Method with its options.
        extra_delay: Extra ticks of each edge.
        codec: Codec with its options.

    >>> format_method_options("fdg", [1, 0], "int8"), format_method_options("fdg", [0], "none")
    ('--method fdg --extra-delay 1,0 --codec int8', '--method fdg')
    """
    delay = f" --extra-delay {','.join(map(str, extra_delay))}" if any(extra_delay) else ""
    encoding = f" --codec {shlex.quote(codec)}" if codec != RunConfig.codec else ""
    return f"--method {shlex.quote(method)}{delay}{encoding}"


def note_on_plan(config: RunConfig) -> str:
    """Return a note if the plan's file recommends another method, extra delay or codec.

    Raises:
        OptionError: The file cannot be read.
    """
    file = Path(config.plan)
    if file.suffix != ".json":
        return ""
    edges = Plan.read(file).stages - 1
    content = read_json(file)
    method, delay = content.get("method"), content.get("extra_delay")
    if not isinstance(method, str) or not isinstance(delay, list):  # cuts alone
        return ""
    codec = str(content.get("codec", RunConfig.codec))
    recommended = format_method_options(method, delay, codec)
    ticks = parse_extra_delay(config.extra_delay)
    used = format_method_options(
        config.method, [ticks] * edges if isinstance(ticks, int) else ticks, config.codec
    )
    if used == recommended:
        return ""
    return f"plan {config.plan} recommends {recommended}; this run uses {used}"


def build_run_method(config: RunConfig) -> Method:
    """Return the method of a configuration, with its extra delay or its staleness.

    Raises:
        OptionError: There is no such method, it cannot have these, or not on so many stages.
    """
    ticks = parse_extra_delay(config.extra_delay)
    method = with_extra_delay(parse_method(config.method), ticks)
    if config.staleness != "none":
        profile = parse_staleness(config.staleness)
        if config.extra_delay:
            raise OptionError(
                f"extra_delay is {config.extra_delay} and staleness is {config.staleness!r}, "
                "which leaves no delay to extend; give one of the two"
            )
        method = with_staleness(method, profile)
    method.require_stages(config.stages)
    return method


def parse_stage_speeds(config: RunConfig) -> tuple[float, ...] | None:
    """Return the speed of each stage; None if all are equal.

    Raises:
        OptionError: They are no numbers.
    """
    if config.stage_speeds == "equal":
        return None
    wanted = "a number for each stage: 1,1,0.5"
    return tuple(parse_numbers(config.stage_speeds, "stage_speeds", wanted, float))


def build_optimizer_factory(
    config: RunConfig, network: nn.Module | None = None
) -> OptimizerFactory:
    """Return a function that builds the optimizer of a stage, once its options are tried.

    Args:
        config: Choices of the training.
        network: The network, whose hidden matrices Muon trains or RotatedAdam rotates; None
            for an optimizer that needs none, or only to check the options.

    Raises:
        OptionError: There is no such optimizer, or it refuses the options or the network.
    """
    named, found, trial = _try_optimizer(config)
    if named.name == "SGD" and "lr" not in named.options:
        raise OptionError(
            f"the optimizer {config.optimizer!r} has no rate, and PyTorch's is 0.001; give it "
            f"as {named.with_option('lr', 0.05)}"
        )
    # Leave biases and norms without decay if the configuration says so.
    group = list if config.weight_decay_on == "all" else decay_groups
    if group is decay_groups and not trial.param_groups[-1].get("weight_decay"):
        raise OptionError(
            f"weight_decay_on is {config.weight_decay_on!r}, and the optimizer {str(named)!r} "
            "has no weight_decay; give it one, or leave weight_decay_on out"
        )
    # Let optimizers of matrices find them in the network.
    if network is not None and found in (optim.Muon, RotatedAdam):
        of_network = muon if found is optim.Muon else rotated_adam
        return of_network(network, group, **named.options)
    return lambda parameters: found(group(parameters), **named.options)


def _try_optimizer(config: RunConfig) -> tuple[Named, Callable[..., Any], optim.Optimizer]:
    """Return the optimizer's name and options, its class, and one of a weight, after a step."""
    named = Named.parse(config.optimizer)
    known = vars(optim) | {RotatedAdam.__name__: RotatedAdam}
    found = _find_class(known, optim.Optimizer, "optimizer", named)
    weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, 1))]
    for weight in weights:
        weight.grad = torch.ones_like(weight)

    def create() -> optim.Optimizer:
        if found is optim.Muon:  # which trains matrices only
            return MuonAdamW(weights[1:], weights[:1], **named.options)
        if found is RotatedAdam:
            return RotatedAdam(weights[1:], **named.options)
        return cast(optim.Optimizer, found(weights[:1], **named.options))

    trial = _try("optimizer", str(named), create)
    _try("optimizer", str(named), trial.step)
    return named, found, trial


def decay_groups(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Split parameters into optimizer groups; only matrices get weight decay.

    Args:
        parameters: Weights of a stage. Weights of two dimensions or more are matrices: also
            embeddings, and the kernels of convolutions.
    """
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}] if matrices else []
    return groups + ([{"params": others, "weight_decay": 0.0}] if others else [])


def split_schedulers(text: str) -> list[Named]:
    """Return the schedulers that a text joins by plus signs, as does no number's: 1e+5."""
    return [Named.parse(part) for part in re.split(r"\+(?=[A-Za-z])", text)]


def build_scheduler_factory(config: RunConfig) -> SchedulerFactory | None:
    """Return a function that builds the scheduler of a stage; None for none.

    Raises:
        OptionError: torch has no such scheduler, or it refuses the options or the optimizer.
    """
    if config.scheduler == "none":
        return None
    parts = split_schedulers(config.scheduler)
    members, base = vars(lr_scheduler), lr_scheduler.LRScheduler
    classes = [_find_class(members, base, "scheduler", part) for part in parts]

    def build(optimizer: optim.Optimizer) -> lr_scheduler.LRScheduler:
        schedulers: list[lr_scheduler.LRScheduler] = [
            scheduler_class(optimizer, **part.options)
            for scheduler_class, part in zip(classes, parts, strict=True)
        ]
        return schedulers[0] if len(parts) == 1 else lr_scheduler.ChainedScheduler(schedulers)

    *_, optimizer = _try_optimizer(config)

    def trial() -> None:
        scheduler = build(optimizer)
        optimizer.step()
        if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):  # which wants a loss
            scheduler.step()

    _try("scheduler", config.scheduler, trial)
    return build


def _find_class(
    members: Mapping[str, object], base: type, kind: str, named: Named
) -> Callable[..., Any]:
    """Find the public subclass of a base class that is named, and check its switches.

    Raises:
        OptionError: There is none, or a switch of it is neither true nor false.
    """
    # Find the class by its name.
    known = {
        name: member
        for name, member in members.items()
        if inspect.isclass(member) and issubclass(member, base) and member is not base
        if not name.startswith("_")
    }
    if named.name not in known:
        raise OptionError(unknown_name(kind, named.name, sorted(known)))
    # Check its switches.
    found = known[named.name]
    switches = {
        name: bool
        for name, parameter in inspect.signature(found).parameters.items()
        if isinstance(parameter.default, bool)  # PyTorch takes any text for true
    }
    if problems := wrong_options(named.options, named.options, switches):
        raise OptionError(format_problems(f"cannot use the {kind} {str(named)!r}", problems))
    return found


def _try(kind: str, text: str, trial: Callable[[], T]) -> T:
    """Run a trial with a single weight, so that a wrong option shows before the training.

    Raises:
        OptionError: The trial fails.
    """
    try:
        return trial()
    except Exception as error:  # of any kind; its text says what is wrong
        raise OptionError(
            format_problems(f"PyTorch refuses the {kind} {text!r}", [str(error)])
        ) from error
