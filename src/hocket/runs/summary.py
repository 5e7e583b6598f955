"""What a training came to, as a whole and stage by stage."""

import dataclasses
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hocket.training.metrics import EpochResult
from hocket.runs.peak_memory import peak_mib
from hocket.methods.method import Method
from hocket.transport.replay_buffer import ReceiveStats
from hocket.training.trainer import Trainer


@dataclass(frozen=True)
class StageSummary:
    """What the final table says of one stage.

    Attributes:
        layers: How many layers it has.
        parameters: Numbers that it trains, without auxiliary networks.
        extra_parameters: Numbers in its head or synthesizer.
        delay: Ticks between forward and backward of a batch.
        staleness: Updates in between, mean of the last epoch, measured; None without one.
        skipped: Batches that it did not learn from, as something was NaN or infinite.
        busy: Part of the training time in which it computed.
        communication: Part in which it handed packets over.
        waiting: Part in which it waited for packets.
        sent_mib: What its process sent to others, evaluations included.
        compression: How many times fewer bytes its codec wrote ahead; None without one.
        lost: Norm of what the codec lost beside that of what was sent, of a late batch.
        perplexity: Codes in use in each of its codebooks, of a late batch.
        unsent: Packets that it dropped itself, as the way to the next stage was not free.
        receive_stats: What became of the packets that came for it, where it draws from a buffer.
        peak_mib: The most memory that its process held at a time.
    """

    layers: int
    parameters: int
    extra_parameters: int
    delay: int
    staleness: float | None
    skipped: int
    busy: float
    communication: float
    waiting: float
    sent_mib: float
    peak_mib: float
    compression: float | None
    lost: float | None
    perplexity: float | None
    unsent: int
    receive_stats: ReceiveStats | None


@dataclass(frozen=True)
class Summary:
    """What a training came to.

    Attributes:
        state: ``finished``, ``interrupted`` or ``failed``.
        message: Why, unless it finished.
        folder: The run folder.
        epochs: What each epoch came to.
        seconds: Time of training, without evaluations.
        samples_per_s: Inputs trained on per second.
        stages: One line for each stage.
        cuts: The layers at which stages 1, 2, ... begin.
        signal: The number of the signal that stopped it; 0 if none did.
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


def summarize_stages(trainer: Trainer, method: Method, epochs: Sequence[EpochResult]) -> list[StageSummary]:
    """What there is to say of the stages of this process."""
    count = trainer.stage_count
    seconds = sum(epoch.seconds for epoch in epochs)
    # Before a restart with other stages they were others, too.
    alike = [epoch for epoch in epochs if len(epoch.skipped) == count]
    return [
        StageSummary(
            layers=len(stage.module if isinstance(stage.module, Sized) else [stage.module]),
            parameters=_numbers(stage.module),
            extra_parameters=_numbers(stage.signal_network),
            delay=method.delay(stage.index, count),
            staleness=epochs[-1].staleness[stage.index] if epochs else None,
            skipped=sum(epoch.skipped[stage.index] for epoch in alike),
            **dataclasses.asdict(stage.recorder.totals.over(seconds)),
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


def parse_stage_summary(uses: dict[str, int] | None, **rest: Any) -> StageSummary:
    """A line that has travelled as plain values."""
    return StageSummary(**rest, receive_stats=ReceiveStats(**uses) if uses is not None else None)


def _numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
