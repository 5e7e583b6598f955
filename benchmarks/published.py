"""Hours that published trainings take on one core of this machine, from some steps of each."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import Workload
from hocket.errors import unknown_name

IMAGES = 50_000
"""Training images of CIFAR-10."""
BATCH = 128
EPOCHS = 300
RUNS = 3
"""Runs of each published row, whose median is given."""
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Published:
    """A network of the papers, with the tables that have it.

    Attributes:
        tables: Tables of its test errors on CIFAR-10.
        rows: Methods, shrinking factors and numbers of stages in these tables: back-propagation
            once, FDG with two factors, and where they are given DDG, DGL and FR.
    """

    tables: str
    rows: int


FDG_2 = "FDG (1906.09108), table 2"
NETWORKS: Mapping[str, Published] = {
    "resnet20": Published(FDG_2, 3),
    "resnet56": Published(f"{FDG_2} and 4", 16),
    "resnet110": Published(FDG_2, 6),
    "resnet18": Published(FDG_2, 6),
    "wrn28_10": Published(FDG_2, 3),
}
"""Networks on CIFAR-10, each trained for 300 epochs with batches of 128."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """Settings of the computation.

    Attributes:
        out: Folder of the record.
        rows: Networks, by their names in `NETWORKS`.
        steps: Timed steps of a plain loop, after one that is not timed.
        threads: PyTorch threads.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/published")
    rows: Sequence[str] = tuple(NETWORKS)
    steps: int = 3
    threads: int = 1

    def __post_init__(self) -> None:
        check_settings(
            "cannot time published trainings",
            self,
            at_least={1: ("steps", "threads")},
            not_empty=("rows",),
            problems=[
                unknown_name("network", row, list(NETWORKS))
                for row in self.rows
                if row not in NETWORKS
            ],
        )


DEFAULTS = PublishedSettings()


def measure_published(settings: PublishedSettings = DEFAULTS) -> None:
    """Time steps of back-propagation for each network, and write the record."""
    record = Record.from_settings("published", settings)
    measured = []
    with torch_threads(settings.threads):
        for network in settings.rows:
            row = _time_network(network, settings)
            line = f"{network}: {row['sample_s'] * 1000:.2f} ms for an image"
            print(f"{line}, {row['hours']:.1f} hours", file=sys.stderr, flush=True)
            measured.append(row)
    record.with_rows(measured).write(settings.out)


def _time_network(network: str, settings: PublishedSettings) -> dict[str, Any]:
    """Return the row of one network."""
    work = Workload(
        network=network,
        shape=(3, 32, 32),
        batch=BATCH,
        stages=1,
        threads=settings.threads,
        channels_last=True,
    )
    step = work.plain_step()
    step()
    times_s = []
    for _ in range(settings.steps):
        start_s = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - start_s)
    sample_s = median(times_s) / BATCH
    hours = sample_s * IMAGES * EPOCHS / SECONDS_PER_HOUR
    published = NETWORKS[network]
    return {
        "row": network,
        "tables": published.tables,
        "published_rows": published.rows,
        "sample_s": sample_s,
        "hours": hours,
        "all_hours": hours * published.rows * RUNS,
    }
