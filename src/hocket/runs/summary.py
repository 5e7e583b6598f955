"""Result of a training, as a whole and stage by stage."""

import dataclasses
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hocket.methods.method import Method
from hocket.runs.peak_memory import peak_mib
from hocket.timeline.span import Totals
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.trainer import Trainer
from hocket.transport.stats import ReceiveStats

SUMMARY = "summary.json"
"""File of the result in a run folder, once the run has ended."""


@dataclass(frozen=True)
class StageSummary:
    """Result of one stage: a row of the final tables.

    Attributes:
        layers: Number of layers.
        parameters: Number of trained values, without auxiliary networks.
        extra_parameters: Number of values in its head or synthesizer.
        delay: Ticks between forward and backward of a batch.
        staleness: Updates in between, measured: mean of the last epoch; None without one in
            as many stages.
        skipped: Number of batches that it did not learn from, as a value was NaN or infinite.
        busy: Fraction of the time since this process began to train, or resumed, in which it
            computed; None if it has not trained.
        communication: Fraction in which it sent packets.
        waiting: Fraction in which it waited for packets.
        sent_mib: Data that its process sent to others, evaluations included.
        peak_mib: Most memory that its process held.
        compression: Factor by which its codec reduced what it sent; None without a codec.
        lost: Norm of the codec's error relative to that of the packet, of a late batch.
        perplexity: Codes in use in each of its codebooks, of a late batch.
        unsent: Number of packets that it dropped, as the next stage was not ready for them.
        receive_stats: Statistics of the packets it received, where it draws from a buffer.
    """

    layers: int
    parameters: int
    extra_parameters: int
    delay: int
    staleness: float | None
    skipped: int
    busy: float | None
    communication: float | None
    waiting: float | None
    sent_mib: float
    peak_mib: float
    compression: float | None
    lost: float | None
    perplexity: float | None
    unsent: int
    receive_stats: ReceiveStats | None


@dataclass(frozen=True)
class Summary:
    """Result of a training.

    Attributes:
        state: ``finished``, ``interrupted`` or ``failed``.
        message: The reason, unless it finished; and results that could not be written.
        folder: The run folder.
        epochs: Result of each epoch.
        seconds: Training time, without evaluations.
        samples_per_s: Training inputs per second.
        stages: Result of each stage.
        cuts: First layers of stages 1, 2, ...
        signal: Number of the signal that stopped it; 0 if none did.
        best_epoch: Number of the epoch, from 0, whose weights are kept; None without such.
        averaged: Evaluation of the averaged weights; None without such, or if interrupted.
        early_stop: The reason for which it ended before its last epoch; empty if it did not.
    """

    state: str
    message: str
    folder: Path
    epochs: tuple[EpochResult, ...]
    seconds: float
    samples_per_s: float
    stages: tuple[StageSummary, ...]
    cuts: tuple[str, ...]
    signal: int = 0
    best_epoch: int | None = None
    averaged: EvaluationResult | None = None
    early_stop: str = ""


def summarize_stages(
    trainer: Trainer, method: Method, epochs: Sequence[EpochResult]
) -> list[StageSummary]:
    """Summarize the stages of this process.

    Args:
        trainer: Trainer that holds them.
        method: Its method.
        epochs: Results of all epochs.
    """
    count = trainer.stage_count
    # Epochs before a resume with another number of stages have other counts.
    comparable = [epoch for epoch in epochs if len(epoch.skipped) == count]
    return [
        StageSummary(
            layers=len(stage.module if isinstance(stage.module, Sized) else [stage.module]),
            parameters=_count_parameters(stage.module),
            extra_parameters=_count_parameters(stage.signal_network),
            delay=method.delay(stage.index, count),
            staleness=comparable[-1].staleness[stage.index] if comparable else None,
            skipped=sum(epoch.skipped[stage.index] for epoch in comparable),
            **_fractions(stage.recorder.totals, trainer.trained_s),
            sent_mib=trainer.sent_bytes / 2**20,
            peak_mib=peak_mib(),
            compression=stage.send_stats.compression,
            lost=stage.send_stats.error,
            perplexity=stage.send_stats.perplexity,
            unsent=stage.send_stats.unsent,
            receive_stats=stage.receive_stats,
        )
        for stage in trainer.stages
    ]


def parse_stage_summary(values: dict[str, Any]) -> StageSummary:
    """Build the result of a stage from plain values."""
    stats = values["receive_stats"]
    receive_stats = None if stats is None else ReceiveStats(**stats)
    return StageSummary(**{**values, "receive_stats": receive_stats})


def _fractions(totals: Totals, trained_s: float) -> dict[str, float | None]:
    """Return the fractions of the time that a stage has trained; None without such a time."""
    fractions = dataclasses.asdict(totals.as_fractions(trained_s))
    return fractions if trained_s else dict.fromkeys(fractions)


def _count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
