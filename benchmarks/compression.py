"""What codecs save and cost: test error over the bytes that each sample sends."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.jobs import carry_out, fields_of
from benchmarks.harness.record import Record
from benchmarks.harness.training import TrainingJob

# Groups of 4, 8, 16 and 32 channels: one byte in the place of 16, 32, 64 and 128.
CODECS = ("none", "bf16", "int8", "vq:width=4", "vq:width=8", "vq:width=16", "vq:width=32")


def compression(
    *,
    out: Path = Path("records/compression"),
    data_dir: Path | None = None,
    network: str = "dgl6:pooling=buffer,width=32",
    data: str = "cifar10",
    subset: int | None = 4000,
    stages: int = 6,
    codecs: Sequence[str] = CODECS,
    method: str = "dgl-async:head=mlp,buffer=30",
    seeds: Sequence[int] = (0, 1),
    epochs: int = 3,
    batch: int = 64,
    rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    threads: int = 1,
    jobs: int = 1,
    nice: int = 10,
) -> None:
    """Train with each codec on every edge, each time in a process of its own.

    Called again, the measurement goes on where it was.

    Args:
        out: Folder of the record.
        data_dir: Folder of the data, for data sets that read files.
        network: Name in the zoo, with options.
        data: Name of the data set.
        subset: Train on so many images only.
        stages: K, balanced.
        codecs: How what stages send is written.
        method: The method; buffers keep packets as they were written.
        seeds: Seeds.
        epochs: How many.
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
    cases = [(codec, seed) for seed in seeds for codec in codecs]
    common = fields_of(chosen) | {"row": method, "evaluate": "end"}
    asked = [TrainingJob(codec=codec, seed=seed, **common) for codec, seed in cases]
    begun = Record.of(compression, chosen, threads)
    record, results = carry_out(begun, asked, out / "runs", data_dir, jobs, nice)
    rows = [
        _row(codec, seed, result) for (codec, seed), result in zip(cases, results, strict=True)
    ]
    record.with_rows(rows).write(out)


def _row(codec: str, seed: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """What one training came to."""
    last = result["epochs"][-1] if result["epochs"] else {}
    ledgers = [stage["ledger"] for stage in result["stages"][:-1]]
    uses = [stage["uses"] for stage in result["stages"] if stage["uses"] is not None]
    samples = sum(epoch["samples"] for epoch in result["epochs"])
    lost = [ledger["error"] for ledger in ledgers if ledger["error"] is not None]
    codes = [ledger["perplexity"] for ledger in ledgers if ledger["perplexity"] is not None]
    return {
        "codec": codec,
        "seed": seed,
        "test_error": last.get("test_error"),
        # Of all edges together.
        "sent_kib": sum(use["arrived_bytes"] for use in uses) / samples / 1024,
        "buffer_mib": sum(use["buffer_bytes"] for use in uses) / 2**20,
        "lost": fmean(lost) if lost else None,
        "perplexity": fmean(codes) if codes else None,
        "source": result["source"],
        "failure": result["failure"],
    }
