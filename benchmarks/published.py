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

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Trainings:
    """Trainings of one network in one paper.

    Attributes:
        tables: The paper and its tables.
        epochs: Epochs of each training.
        rows: Rows of the tables that are trainings of their own: back-propagation once for each
            data set, FDG with two factors, and every other method and number of stages.
        runs: Trainings of each row.
    """

    tables: str
    epochs: int
    rows: int
    runs: int


@dataclass(frozen=True)
class Published:
    """A network of the papers, the images that it learns, and its trainings.

    Attributes:
        trainings: Its trainings, one entry for each paper and length.
        images: Images of an epoch.
        side: Side of an image, in pixels.
        batch: Images of a timed step: the batch of the papers, or fewer where that takes long.
    """

    trainings: Sequence[Trainings]
    images: int = 50_000
    side: int = 32
    batch: int = 128


def _of_fdg(tables: str, rows: int) -> Trainings:
    """Return trainings of FDG's tables, which give medians of three runs of 300 epochs."""
    return Trainings(f"FDG (1906.09108), {tables}", epochs=300, rows=rows, runs=3)


def _of_dgl(tables: str, epochs: int, rows: int, runs: int = 1) -> Trainings:
    """Return trainings of DGL's tables and figures."""
    return Trainings(f"DGL (1901.08164), {tables}", epochs=epochs, rows=rows, runs=runs)


def _imagenet(rows: int) -> Published:
    """Return a network that DGL trains on ImageNet."""
    return Published((_of_dgl("ImageNet", 50, rows),), images=1_281_167, side=224, batch=16)


NETWORKS: Mapping[str, Published] = {
    "resnet20": Published((_of_fdg("table 2", 3),)),
    "resnet56": Published((_of_fdg("tables 2 to 4", 22),)),
    "resnet110": Published((_of_fdg("tables 2 and 3", 12), _of_dgl("beside DDG", 300, 3))),
    "resnet18": Published((_of_fdg("tables 2 and 3", 12),)),
    "wrn28_10": Published((_of_fdg("tables 2 and 3", 6),), batch=32),
    "dgl6": Published((_of_dgl("auxiliary networks", 50, 3),)),
    "dgl6:pooling=buffer": Published((_of_dgl("asynchronous, a slow stage", 50, 60, 3),)),
    "dni3": Published((_of_dgl("beside DNI", 1500, 4),), batch=256),
    "vgg13_bn": _imagenet(3),
    "vgg19_bn": _imagenet(3),
    "resnet152": _imagenet(2),
}
"""Networks of the papers of FDG and DGL, on CIFAR-10 and 100 where nothing else is said."""


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
    rows = []
    with torch_threads(settings.threads):
        for network in settings.rows:
            sample_s = _time_sample(network, settings)
            print(
                f"{network}: {sample_s * 1000:.2f} ms for an image", file=sys.stderr, flush=True
            )
            rows += _count_hours(network, sample_s)
    record.with_rows(rows).write(settings.out)


def _time_sample(network: str, settings: PublishedSettings) -> float:
    """Return the seconds that back-propagation takes for an image.

    The network has ten outputs on each data set: its last layer does not matter here.
    """
    published = NETWORKS[network]
    work = Workload(
        network=network,
        shape=(3, published.side, published.side),
        batch=published.batch,
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
    return median(times_s) / published.batch


def _count_hours(network: str, sample_s: float) -> list[dict[str, Any]]:
    """Return a row for each entry of a network, with the hours of its trainings."""
    published = NETWORKS[network]
    rows = []
    for trainings in published.trainings:
        hours = sample_s * published.images * trainings.epochs / SECONDS_PER_HOUR
        rows.append(
            {
                "row": network,
                "tables": trainings.tables,
                "epochs": trainings.epochs,
                "published_rows": trainings.rows,
                "runs": trainings.runs,
                "sample_s": sample_s,
                "hours": hours,
                "all_hours": hours * trainings.rows * trainings.runs,
            }
        )
    return rows
