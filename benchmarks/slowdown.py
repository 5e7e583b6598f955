"""What a slow stage costs where stages run freely: error over slow-down and buffer size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.jobs import carry_out, fields_of
from benchmarks.harness.record import Record
from benchmarks.harness.training import TrainingJob
from hocket.errors import OptionError


def slowdown(
    *,
    out: Path = Path("records/slowdown"),
    data_dir: Path | None = None,
    network: str = "dgl6:pooling=buffer,width=16",
    data: str = "cifar10",
    subset: int | None = 4000,
    stages: int = 6,
    slowed: int = 3,
    factors: Sequence[float] = (1, 1.25, 1.5, 2, 3),
    buffers: Sequence[int] = (1, 5, 30),
    method: str = "dgl-async:head=mlp",
    seeds: Sequence[int] = (0, 1),
    epochs: int = 4,
    batch: int = 64,
    rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    threads: int = 1,
    jobs: int = 1,
    nice: int = 10,
) -> None:
    """Train with one stage slower than the others, each time in a process of its own.

    Turns fall to stages by chance, in proportion to their rates, as in the official code of
    arXiv 1901.08164. Every stage learns for as many epochs of its own. Called again, the
    measurement goes on where it was.

    Args:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        subset: Train on so many images only.
        stages: K, balanced.
        slowed: The stage that is slow.
        factors: How many times slower it is.
        buffers: How many batches each stage keeps (M).
        method: The method, without its buffer.
        seeds: Seeds.
        epochs: Epochs that each stage learns.
        batch: Samples of a batch.
        rate: Learning rate of SGD.
        momentum: Of SGD.
        weight_decay: Of SGD.
        threads: Of each training.
        jobs: Trainings at a time.
        nice: How far each training steps back behind other processes, 0 to 19.

    Raises:
        OptionError: An option is out of range, or ``out`` has trainings with other settings.
        HocketError: A training failed; those that ended are kept.
    """
    chosen = dict(locals())
    if not 0 <= slowed < stages:
        raise OptionError(f"slowed is {slowed}; the {stages} stages are 0 to {stages - 1}")
    cases = [(f, m, seed) for seed in seeds for m in buffers for f in factors]
    join = "," if ":" in method else ":"
    common = fields_of(chosen) | {"turns": "random", "evaluate": "end"}
    asked = [
        TrainingJob(
            row=f"{method}{join}buffer={m}",
            seed=seed,
            rates=tuple(1 / factor if k == slowed else 1.0 for k in range(stages)),
            **common,
        )
        for factor, m, seed in cases
    ]
    begun = Record.of(slowdown, chosen, threads)
    record, results = carry_out(begun, asked, out / "runs", data_dir, jobs, nice)
    rows = [
        _row(factor, m, seed, slowed, result)
        for (factor, m, seed), result in zip(cases, results, strict=True)
    ]
    record.with_rows(rows).write(out)


def _row(
    factor: float, buffer: int, seed: int, slowed: int, result: Mapping[str, Any]
) -> dict[str, Any]:
    """What one training came to."""
    last = result["epochs"][-1] if result["epochs"] else {}
    uses = [stage["uses"] for stage in result["stages"][1:]]
    behind = uses[slowed] if slowed < len(uses) else None
    own = uses[slowed - 1] if slowed > 0 else None
    return {
        "factor": factor,
        "buffer": buffer,
        "seed": seed,
        "test_error": last.get("test_error"),
        "passes": len(result["epochs"]),
        # Of what came for the slow stage, and of what the next one drew.
        "dropped": own["dropped"] / own["arrived"] if own else None,
        "reused": behind["reused"] / behind["drawn"] if behind else None,
        "source": result["source"],
        "failure": result["failure"],
    }
