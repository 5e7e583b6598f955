"""What stages that run freely in processes of their own leave, and what holds for all of it."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest

from hocket import Trainer
from hocket.engine.event import Event
from hocket.training.results.metrics import EpochResult

Stage = dict[str, Any]


def left_by(trainer: Trainer, events: Sequence[Event], history: Sequence[EpochResult]) -> Stage:
    """Return what the stage of this process has done and counted, as JSON."""
    stage, learned = trainer.stages[0], [e for e in events if e.action.kind == "B"]
    received = stage.receive_stats
    return {
        "ticks": trainer.engine.tick_count,
        "counts": {kind: sum(e.action.kind == kind for e in events) for kind in "FBU"},
        "losses": [e.report.loss for e in learned],
        "epochs": [e.report.epoch for e in learned],
        "updates": [e.action.batch for e in learned],
        "send": asdict(stage.send_stats),
        "receive": asdict(received) if received else None,
        "buffered": trainer.engine._buffer.waiting if received else 0,
        "history": [asdict(epoch) | {"seconds": 0.0} for epoch in history],
        "weights": [float(v.double().sum()) for v in trainer.network.state_dict().values()],
    }


def assert_all_counted(stages: Sequence[Stage]) -> None:
    """Every packet was used, or counted as dropped or lost."""
    for sender, receiver in pairwise(stages):
        sends, receives = sender["send"], receiver["receive"]
        assert sender["ticks"] == sends["sent"] + sends["unsent"]
        assert sends["sent"] == receives["arrived"] + receives["lost"] - receives["orphaned"]
        used = receives["drawn"] - receives["reused"]
        assert receives["arrived"] == used + receives["dropped"] + receiver["buffered"]
        assert receives["drawn"] == receiver["ticks"]
    assert stages[0]["receive"] is None
    assert stages[-1]["send"]["unsent"] == 0


def assert_equal_ends(stages: Sequence[Stage], epochs: int) -> None:
    """All processes have the same network, and the history of all epochs."""
    first, *others = stages
    for other in others:
        for key in ("history", "weights", "evaluated again"):
            assert other[key] == first[key]
    assert [epoch["number"] for epoch in first["history"]] == list(range(epochs))
    assert first["history"][-1]["evaluation"]["loss"] == pytest.approx(first["evaluated again"])
