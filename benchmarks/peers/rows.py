"""Rows, such as ``fdg:extra_delay=1+predict``, and the baselines that they name."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness.balance import Balancer
from benchmarks.harness.workload import Workload, torch_threads
from benchmarks.peers.baseline import Baseline
from benchmarks.peers.ddp import DDP
from benchmarks.peers.decoupled import Decoupled
from benchmarks.peers.fdg_by_hand import FDGByHand
from benchmarks.peers.pipeline import SCHEDULES, Pipeline
from benchmarks.peers.plain import PlainLoop
from benchmarks.peers.row import Row
from hocket.codecs import parse_codec
from hocket.distributed.replicas.meet import MEETINGS, as_meet
from hocket.errors import OptionError, format_problems, unknown_name
from hocket.methods import METHODS, build_method
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_extra_delay
from hocket.options import Named, wrong_options
from hocket.partition import Plan
from hocket.remedies.registry import parse_remedies
from hocket_lab.planner.devices import Devices
from hocket_lab.planner.predict import cut_by_time


def _build_pipeline(
    work: Workload, balance: Balancer, *, schedule: str, microbatches: int = 4
) -> Baseline:
    """Build a synchronous pipeline over as many processes as there are stages."""
    _equal_parts(work, microbatches, "micro-batches")
    plan = balance.plan(SCHEDULES[schedule].placement(work.stages), microbatches)
    return Pipeline(schedule, work.stages, work.threads, microbatches, plan)


def _build_fdg_by_hand(work: Workload, balance: Balancer) -> Baseline:
    """Build FDG as a loop written by hand, with the cut of the row ``fdg``.

    Raises:
        OptionError: There is only one stage.
    """
    if work.stages == 1:
        raise OptionError("'fdg-by-hand' has no delay with one stage; use 2 or more stages")
    return FDGByHand(work.threads, balance.plan(range(work.stages), microbatches=1))


class MethodRow(NamedTuple):
    """A row of one of Hocket's methods, read.

    Attributes:
        method: The method, with its extra delay and its remedies.
        text: The method as `hocket train` takes it, without extra delay.
        extra_delay: Additional ticks of the packets.
        codec: Encoding of what stages send, as `hocket train` takes it.
        checksum: True if tensors are sent with checksums.
        cuts: First module of each stage but the first one; none for balanced cuts.
        speeds: Speeds of the processes for which `hocket plan` shall cut, or an empty text.
    """

    method: Method
    text: str
    extra_delay: int
    codec: str
    checksum: bool
    cuts: tuple[str, ...]
    speeds: str


def parse_method_row(row: Row) -> MethodRow:
    """Read a row of one of Hocket's methods.

    Extra delay, codec, checksum and cut are options like the method's own. Several cuts are a
    list, ``cut=["layer1_2","layer2_1"]``; ``speeds="1,0.5"`` cuts for these processes.

    Raises:
        OptionError: An option or a remedy does not exist, or is out of range.

    >>> row = Row.parse("fdg:extra_delay=1,codec=int8,checksum=false+predict")
    >>> method, *rest = parse_method_row(row)
    >>> method.delay(0, stages=2), len(method.remedies), rest
    (4, 1, ['fdg+predict', 1, 'int8', False, (), ''])
    """
    options = dict(row.options)
    delay, checksum = options.pop("extra_delay", 0), options.pop("checksum", True)
    parse_codec(codec := str(options.pop("codec", "none")))
    cut = options.pop("cut", [])
    cuts = tuple(cut) if isinstance(cut, list) else (str(cut),)
    speeds = str(options.pop("speeds", ""))
    if cuts and speeds:
        raise OptionError(f"cut and speeds are given in the row {row}; give one of the two")
    if type(delay) is not int or delay < 0:
        raise OptionError(f"extra_delay is {delay!r} in the row {row}; use a number of ticks")
    if not isinstance(checksum, bool):
        raise OptionError(f"checksum is {checksum!r} in the row {row}; use true or false")
    method = with_extra_delay(build_method(row.name, **options), delay)
    if row.remedies:
        method = method.with_remedies(*parse_remedies(list(row.remedies)))
    text = str(Row(Named(row.name, options), row.remedies))
    return MethodRow(method, text, delay, codec, checksum, cuts, speeds)


BASE = "bp"
"""Row of back-propagation, whose updates all synchronous rows have."""
SCHEDULED = {"hocket-gpipe": "gpipe", "hocket-1f1b": "1f1b"}
"""Rows of Hocket's methods that are also names of schedules, with the names of the methods."""
REPLICATED = ("pipe-sgd", *MEETINGS)
"""Rows whose processes have replicas of the whole network that wait less."""
BUILDERS: Mapping[str, Callable[..., Baseline]] = {
    # All others are compared with one process on one core.
    BASE: lambda work, _: PlainLoop(processes=1, threads=work.threads),
    "bp-all": lambda work, _: PlainLoop(processes=1, threads=os.cpu_count() or 1),
    "independent": lambda work, _: PlainLoop(processes=work.stages, threads=work.threads),
    "ddp": lambda work, _: DDP(_equal_parts(work, work.stages, "processes"), work.threads),
    "fdg-by-hand": _build_fdg_by_hand,
    **{name: partial(_build_pipeline, schedule=name) for name in SCHEDULES},
}
"""Builders of baselines for a workload and its balancer; keywords are options of the row."""


def is_method(row: str) -> bool:
    """Return True if a row is a method of Hocket with other updates than back-propagation."""
    return parse_row(row).name not in {*BUILDERS, *SCHEDULED, *REPLICATED}


def replica_options(row: Row) -> dict[str, Any]:
    """Return the options of a trainer for a row of replicas of the whole network.

    Raises:
        OptionError: An option does not exist, or is out of range.

    >>> replica_options(Row.parse("diloco:every=8")), replica_options(Row.parse("pipe-sgd"))
    ({'meet': 'diloco:every=8'}, {'replica_delay': 1})
    """
    if row.name in MEETINGS:
        as_meet(str(row.named))
        return {"meet": str(row.named)}
    delay = row.options.get("delay", 1)
    if row.options.keys() - {"delay"} or type(delay) is not int or delay < 1:
        raise OptionError(f"the row {row} has another option than delay, at least 1")
    return {"replica_delay": delay}


def trained_row(row: str) -> str:
    """Return the row whose training tells the updates of a row.

    >>> [trained_row(row) for row in ("ddp", "diloco", "dgl", "fdg:shrink=0.5,checksum=false")]
    ['bp', 'diloco', 'dgl', 'fdg:shrink=0.5']
    """
    parsed = Row.parse(row)
    if parsed.name in REPLICATED:
        return row
    if not is_method(row):
        return BASE
    learned = {name: value for name, value in parsed.options.items() if name != "checksum"}
    return str(Row(Named(parsed.name, learned), parsed.remedies))


def accumulated(row: str) -> int:
    """Return the number of batches in an update of a row of Hocket; 1 for others."""
    own = as_method(Row.parse(row))
    return parse_method_row(own).method.accumulate if own is not None else 1


def as_method(row: Row) -> Row | None:
    """Return a row of a method of Hocket, with the name of the method; None for baselines.

    Raises:
        OptionError: There are no rows of this name.
    """
    if row.name in {*BUILDERS, *REPLICATED}:
        return None
    name = SCHEDULED.get(row.name, row.name)
    if name not in METHODS:
        raise OptionError(
            unknown_name("row", name, [*BUILDERS, *REPLICATED, *SCHEDULED, *METHODS])
        )
    return Row(Named(name, dict(row.options)), row.remedies)


def parse_row(row: str) -> Row:
    """Parse a row and check its name, its remedies, and names and types of its options.

    Raises:
        OptionError: The name, an option or a remedy does not exist, or an option has another
            type.
    """
    parsed = Row.parse(row)
    if (own := as_method(parsed)) is not None:
        parse_method_row(own)
        return parsed
    if parsed.remedies:
        raise OptionError(
            f"{parsed.name!r} is no method of Hocket and has no remedies in the row {row!r}; "
            f"leave out '+{'+'.join(parsed.remedies)}'"
        )
    if parsed.name in REPLICATED:
        replica_options(parsed)
        return parsed
    hints = {"microbatches": int} if parsed.name in SCHEDULES else {}
    if problems := wrong_options(parsed.options, hints, hints):
        raise OptionError(format_problems(f"cannot read the row {row!r}", problems))
    return parsed


def build_baseline(row: str, work: Workload, balance: Balancer) -> Baseline:
    """Build the baseline of a row; measures the network's layers if it is cut by time.

    Raises:
        OptionError: The row does not exist, or does not fit the work.
        CutError: The network cannot be cut into as many stages as the row needs.
    """
    parsed = parse_row(row)
    if parsed.name in REPLICATED:
        replicas = _equal_parts(work, work.stages, "replicas")
        told = {"replicas": replicas, **replica_options(parsed)}
        return Decoupled(METHODS[BASE](), work.threads, Plan(()), replicas, told)
    if (own := as_method(parsed)) is None:
        return BUILDERS[parsed.name](work, balance, **parsed.options)

    # A method of Hocket, with a process for each stage.
    read = parse_method_row(own)
    if read.cuts and len(read.cuts) != work.stages - 1:
        raise OptionError(
            f"the row {row} is cut at {len(read.cuts)} places for {work.stages} stages; name "
            "the first module of each stage but the first one"
        )
    if read.speeds:
        devices, methods = Devices(speeds=read.speeds), [read.method.name]
        with torch_threads(work.threads):
            build, counts = work.network_and_batch, [work.stages]
            ((planned,),) = cut_by_time(build, counts, methods, devices)
        plan = Plan(planned.cuts)
    elif read.cuts:
        plan = Plan(read.cuts)
    else:
        plan = balance.plan(range(work.stages), microbatches=1)
    told = {"codec": read.codec, "checksum": read.checksum}
    return Decoupled(read.method, work.threads, plan, options=told)


def _equal_parts(work: Workload, parts: int, kind: str) -> int:
    """Refuse parts that are not equal: their mean is not the batch's. Return their number.

    Raises:
        OptionError: The batch has no such number of equal parts.
    """
    if parts < 1 or work.batch % parts:
        raise OptionError(
            f"a batch of {work.batch} has no {parts} equal parts for {kind}; choose a batch "
            "that is a multiple of them"
        )
    return parts
