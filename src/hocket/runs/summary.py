"""Result of a training, as a whole and stage by stage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.training.results.metrics import EpochResult, EvaluationResult
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
        staleness: Updates in between, measured: mean of the last epoch; None if no epoch was
            trained with this number of stages.
        skipped: Number of batches that it did not learn from, as a value was NaN or infinite.
        busy: Fraction of the time since this process began to train, or resumed, in which it
            computed; None if it has not trained.
        communication: Fraction in which it sent packets.
        waiting: Fraction in which it waited for packets.
        sent_mib: Data that its process sent to others, evaluations included.
        peak_mib: Most memory that its process held.
        compression: Factor by which its codec reduced what it sent; None without a codec.
        lost: Norm of the codec's error relative to the packet's norm, of a late batch.
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
        state: ``finished``, ``interrupted``, ``failed`` or ``diverged``.
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


def parse_stage_summary(values: dict[str, Any]) -> StageSummary:
    """Build the result of a stage from plain values."""
    stats = values["receive_stats"]
    receive_stats = None if stats is None else ReceiveStats(**stats)
    return StageSummary(**{**values, "receive_stats": receive_stats})
