"""Rehearsals of several candidates, in this process or in several processes at once."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import torch
from torch import distributed, nn

from hocket.codecs.registry import parse_codec
from hocket.distributed.launching.launch import launch
from hocket.errors import HocketError
from hocket.methods import parse_method
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_extra_delay
from hocket.partition import Plan, divide
from hocket.partition.costs.device import Device
from hocket.signals.losses import cross_entropy
from hocket.stage.setup import Setup
from hocket.tree import Tree, tensors
from hocket_lab.planner.rehearse import StageProfile, rehearse

NetworkFactory: TypeAlias = Callable[[], tuple[nn.Module, Tree, Tree]]
"""Builds the network and a batch of inputs and targets; the same in every process."""
CandidateProfile: TypeAlias = tuple[StageProfile, ...]
"""Profile of each stage of a candidate."""
Track: TypeAlias = Callable[[Sequence["Candidate"]], Iterable["Candidate"]]
"""Iterates over candidates, and may display the progress, as `rich.progress.track` does."""


@dataclass(frozen=True)
class Candidate:
    """A method and a cut of the network, to be compared with others.

    Attributes:
        method: Name of the method, with options.
        cuts: Names of the modules at which stages 1, 2, ... begin.
        extra_delay: Additional ticks of the packets over each edge; empty for none.
        devices: Device of each stage; empty if all are as fast as this machine.
        codec: Codec of the packets, with options.
    """

    method: str
    cuts: tuple[str, ...]
    extra_delay: tuple[int, ...] = ()
    devices: tuple[Device, ...] = field(default=(), compare=False)  # rehearsed here, all alike
    codec: str = "none"

    def build_method(self) -> Method:
        """Return the method with its extra delay, in its steady state.

        Raises:
            OptionError: There is no such method, or it cannot have that delay.
        """
        return with_extra_delay(parse_method(self.method).steady, self.extra_delay or 0)


def rehearse_candidates(
    build: NetworkFactory,
    candidates: Sequence[Candidate],
    track: Track = iter,
    *,
    with_idle: bool = False,
) -> list[CandidateProfile]:
    """Measure the stages of each candidate in this process.

    All candidates are rehearsed a second time in reverse order, so that a machine whose speed
    drifts affects all of them equally.

    Args:
        build: Builds the network and a batch.
        candidates: Methods and cuts.
        track: Iterates over what is to be rehearsed.
        with_idle: Sleep before each action that needs a packet, as a stage that waits does.

    Raises:
        CutError: The network cannot be cut there.
        OptionError: A stage is not compatible with a method.
    """
    network, inputs, targets = build()
    modules: dict[tuple[str, ...], list[nn.Module]] = {}
    profiles: dict[Candidate, list[CandidateProfile]] = {one: [] for one in candidates}
    for candidate in track([*candidates, *reversed(candidates)]):
        if candidate.cuts not in modules:
            _, modules[candidate.cuts] = divide(network, Plan(candidate.cuts), inputs)
        setup, stages = _build_setup(candidate, inputs), modules[candidate.cuts]
        profiles[candidate].append(
            rehearse(setup, stages, inputs, targets, with_idle=with_idle)
        )
    return [_merge_seconds(profiles[candidate]) for candidate in candidates]


def rehearse_together(
    build: NetworkFactory, candidates: Sequence[Candidate], processes: int, threads: int
) -> list[CandidateProfile]:
    """Measure the stages of each candidate while other processes do the same.

    Args:
        build: Builds the network and a batch.
        candidates: Methods and cuts.
        processes: Number of processes of this machine.
        threads: Number of PyTorch's threads in each process.

    Raises:
        HocketError: A process failed.
    """
    with TemporaryDirectory(prefix="hocket-") as folder:
        arguments = folder, build, candidates
        if launch(_rehearse_process, *arguments, processes=processes, threads=threads):
            raise HocketError("a process of the rehearsal failed; its error is printed above")
        files = [Path(folder, str(rank)) for rank in range(processes)]
        profiles: list[list[CandidateProfile]] = [
            [
                tuple(StageProfile(**stage) for stage in stages)
                for stages in json.loads(file.read_text())
            ]
            for file in files
        ]
    return [_merge_seconds(of_candidate) for of_candidate in zip(*profiles, strict=True)]


def _rehearse_process(
    folder: str, build: NetworkFactory, candidates: Sequence[Candidate]
) -> int:
    """Rehearse in one of several processes, and write the profiles to a file."""
    profiles = rehearse_candidates(build, candidates)
    plain = [[asdict(stage) for stage in stages] for stages in profiles]
    Path(folder, str(distributed.get_rank())).write_text(json.dumps(plain))
    return 0


def _merge_seconds(profiles: Sequence[CandidateProfile]) -> CandidateProfile:
    """Merge repeated profiles of the same stages: keep the durations of all of them."""
    merged = []
    for repeated in zip(*profiles, strict=True):
        seconds = {
            kind: tuple(chain.from_iterable(profile.seconds[kind] for profile in repeated))
            for kind in repeated[0].seconds
        }
        merged.append(replace(repeated[0], seconds=seconds))
    return tuple(merged)


def _build_setup(candidate: Candidate, inputs: Tree) -> Setup:
    """Return the options of a training by SGD with momentum that hardly changes the weights."""
    return Setup(
        method=candidate.build_method(),
        loss=cross_entropy,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1e-9, momentum=0.9),
        device=tensors(inputs)[0].device,
        codec=parse_codec(candidate.codec),
        checksum=False,
    )
