"""From the words of a row to what is timed."""

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks.harness.balance import Balance
from benchmarks.harness.workload import Workload
from benchmarks.peers.ddp import DDP
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.peer import Baseline
from benchmarks.peers.pipeline import SCHEDULES, Pipeline
from benchmarks.peers.plain import Plain
from hocket.errors import OptionError, listed, unknown
from hocket.methods import METHODS, build_method
from hocket.methods.method import Method
from hocket.options import Named, argument_hints, wrong_options
from hocket.transport.codecs import Codec, parse_codec

Builder = Callable[..., Baseline]
"""Makes a peer of a `Work` and its `Balance`; keywords are the options of the row."""


def bp(work: Workload, balance: Balance) -> Baseline:
    """One process on one core: what all others are compared with."""
    return Plain(processes=1, threads=work.threads)


def bp_all(work: Workload, balance: Balance) -> Baseline:
    """One process with a thread for every core."""
    return Plain(processes=1, threads=os.cpu_count() or 1)


def independent(work: Workload, balance: Balance) -> Baseline:
    """As many processes as there are stages, each with a training of its own."""
    return Plain(processes=work.stages, threads=work.threads)


def ddp(
    work: Workload,
    balance: Balance,
    *,
    static_graph: bool = True,
    bucket_view: bool = True,
    bucket_mib: float = 25.0,
    broadcast_buffers: bool = False,
) -> Baseline:
    """As many processes as there are stages, which share the batch.

    Raises:
        OptionError: The batch cannot be shared evenly.
    """
    _even(work, work.stages, "processes")
    return DDP(
        work.stages,
        work.threads,
        static_graph=static_graph,
        bucket_view=bucket_view,
        bucket_mib=bucket_mib,
        broadcast_buffers=broadcast_buffers,
    )


def pipeline(
    work: Workload, balance: Balance, *, schedule: str, microbatches: int = 4
) -> Baseline:
    """As many processes as there are stages, cut where the times of micro-batches are even.

    Raises:
        OptionError: The batch has no such equal parts.
        CutError: There are fewer layers than the schedule has stages.
    """
    _even(work, microbatches, "micro-batches")
    plan = balance.plan(SCHEDULES[schedule].homes(work.stages), microbatches)
    return Pipeline(schedule, work.stages, work.threads, microbatches, plan)


def decoupled(work: Workload, balance: Balance, *, name: str, **options: Any) -> Baseline:
    """A method of Hocket, a process for each stage, cut where the times of batches are even.

    Raises:
        OptionError: The method has no such option.
        CutError: There are fewer layers than stages.
    """
    plan = balance.plan(range(work.stages), microbatches=1)
    method, codec, checksum = chosen(Named(name, options))
    return Decoupled(method, codec, work.threads, plan, checksum)


def chosen(asked: Named) -> tuple[Method, Codec, bool]:
    """The method of a row, its codec, and whether it sends checksums.

    Slack, codec and checksum are options like the method's own.

    Raises:
        OptionError: An option does not exist, or is out of range.

    >>> method, *way = chosen(Named("fdg", {"extra_delay": 1, "codec": "int8", "checksum": False}))
    >>> method.delay(0, stages=2), way
    (4, [Integers(), False])
    """
    own = dict(asked.options)
    slack, checksum = own.pop("extra_delay", 0), own.pop("checksum", True)
    codec = parse_codec(str(own.pop("codec", "none")))
    if type(slack) is not int or slack < 0:
        raise OptionError(f"extra_delay is {slack!r} in the row {asked}; use a number of ticks")
    if not isinstance(checksum, bool):
        raise OptionError(f"checksum is {checksum!r} in the row {asked}; use true or false")
    return build_method(asked.name, **own).with_extra_delay(slack), codec, checksum


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {"bp": bp, "bp-all": bp_all, "independent": independent, "ddp": ddp}
    | {name: partial(pipeline, schedule=name) for name in SCHEDULES}
)


def builder_of(name: str) -> Builder:
    """What makes the rows of this name; the one place that knows which rows there are.

    Raises:
        OptionError: There are no rows of this name.
    """
    if name in BUILDERS:
        return BUILDERS[name]
    if name in METHODS:
        return partial(decoupled, name=name)
    raise OptionError(unknown("row", name, [*BUILDERS, *METHODS]))


def checked(row: str) -> Named:
    """The row, whose name and options exist.

    Raises:
        OptionError: They do not, or are of another type.
    """
    asked = Named.parse(row)
    builder = builder_of(asked.name)
    if isinstance(builder, partial) and builder.func is decoupled:
        chosen(asked)
        return asked
    own = builder.keywords if isinstance(builder, partial) else {}
    known = [
        parameter.name
        for parameter in inspect.signature(builder).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in own
    ]
    if problems := wrong_options(asked.options, known, argument_hints(builder)):
        raise OptionError(listed(f"cannot read the row {row!r}", problems))
    return asked


def peer_of(row: str, work: Workload, balance: Balance) -> Baseline:
    """What a row means for this work; measures the layers if the row is cut by time.

    Raises:
        OptionError: The row does not exist, or does not fit the work.
        CutError: The network cannot be cut into as many stages as the row needs.
    """
    asked = checked(row)
    return builder_of(asked.name)(work, balance, **asked.options)


def _even(work: Workload, parts: int, what: str) -> None:
    """Refuse parts that are not equal: means over them would not be the mean of the batch."""
    if parts < 1 or work.batch % parts:
        raise OptionError(
            f"a batch of {work.batch} has no {parts} equal parts for {what}; choose a batch "
            "that is a multiple of them"
        )
