"""What is rehearsed for a plan, by this process alone or by several at the same time."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import torch
from torch import distributed, nn

from hocket.distributed.launch import launch
from hocket.engine.setup import Setup
from hocket.errors import HocketError
from hocket.losses import cross_entropy
from hocket.partition import Plan, divide
from hocket.planner.rehearse import Rehearsed, rehearse
from hocket.runs.build import parse_method
from hocket.transport.codecs import Exact
from hocket.tree import Tree, tensors

Build: TypeAlias = Callable[[], tuple[nn.Module, Tree, Tree]]
"""Gives the network and a batch of inputs and targets; the same in every process."""
Stages: TypeAlias = tuple[Rehearsed, ...]
Through: TypeAlias = Callable[[Sequence["Candidate"]], Iterable["Candidate"]]
"""Goes through cases, and may show how far it has come."""


@dataclass(frozen=True)
class Candidate:
    """A method on a cut network.

    Attributes:
        method: Its name, with options.
        cuts: The modules at which stages 1, 2, ... begin.
    """

    method: str
    cuts: tuple[str, ...]


def rehearsed(
    build: Build,
    cases: Sequence[Candidate],
    through: Through = iter,
    *,
    with_idle: bool = False,
    returns: bool = True,
) -> list[Stages]:
    """What the stages of each case take and hold, in this process.

    Args:
        build: Gives the network and a batch.
        cases: The methods, and where they are cut.
        through: Goes through what is to be rehearsed.
        with_idle: Whether a stage rests before whatever takes a packet, as one that waits does.
        returns: Whether to go there and back, so that a machine that becomes slower is so for
            all of them.

    Raises:
        CutError: The network cannot be cut so.
        OptionError: A stage cannot honour a method.
    """
    network, inputs, targets = build()
    divided: dict[tuple[str, ...], list[nn.Module]] = {}
    found: dict[Candidate, list[Stages]] = {case: [] for case in cases}
    for case in through([*cases, *(reversed(cases) if returns else ())]):
        if case.cuts not in divided:
            _, divided[case.cuts] = divide(network, Plan(case.cuts), inputs)
        modules = divided[case.cuts]
        stages = rehearse(_setup(case, inputs), modules, inputs, targets, with_idle=with_idle)
        found[case].append(stages)
    return [_all(found[case]) for case in cases]


def rehearsed_together(
    build: Build,
    cases: Sequence[Candidate],
    processes: int,
    threads: int,
    *,
    returns: bool = True,
) -> list[Stages]:
    """The same where so many processes of this machine rehearse the same at the same time.

    Raises:
        HocketError: A process failed.
    """
    with TemporaryDirectory(prefix="hocket-") as folder:
        asked = folder, build, cases, returns
        if launch(_rehearse, *asked, processes=processes, threads=threads):
            raise HocketError("a process that rehearsed failed; what it said is above")
        files = [Path(folder, str(rank)) for rank in range(processes)]
        told = [json.loads(file.read_text()) for file in files]
        each: list[list[Stages]] = [
            [tuple(Rehearsed(**stage) for stage in stages) for stages in own] for own in told
        ]
    return [_all(stages) for stages in zip(*each, strict=True)]


def _rehearse(folder: str, build: Build, cases: Sequence[Candidate], returns: bool) -> int:
    """What each process does."""
    found = rehearsed(build, cases, returns=returns)
    plain = [[asdict(stage) for stage in stages] for stages in found]
    Path(folder, str(distributed.get_rank())).write_text(json.dumps(plain))
    return 0


def _all(seen: Sequence[Stages]) -> Stages:
    """The same stages as they were seen several times: with all of their times."""
    found = []
    for stage in zip(*seen, strict=True):
        seconds = {
            kind: tuple(chain.from_iterable(one.seconds[kind] for one in stage))
            for kind in stage[0].seconds
        }
        found.append(replace(stage[0], seconds=seconds))
    return tuple(found)


def _setup(case: Candidate, inputs: Tree) -> Setup:
    """As for a training, by SGD with a momentum, at a rate that hardly changes weights."""
    return Setup(
        method=parse_method(case.method),
        loss=cross_entropy,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e-9, momentum=0.9),
        scheduler=None,
        scheduler_unit="epoch",
        seed=0,
        device=tensors(inputs)[0].device,
        precision="fp32",
        record_timeline=False,
        codec=Exact(),
        resumable=False,
        batchnorm="local",
        stage_speeds=None,
        on_nan="stop",
        skip_batches=frozenset(),
        checksum=False,
    )
