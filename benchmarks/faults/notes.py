"""Notes of the faults that have happened, so that a job which is restarted meets none twice."""

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.fault import Fault


def take_due(
    folder: Path,
    faults: Sequence[Fault],
    stage: int,
    tick: int,
    kinds: Collection[str],
    *,
    now: int,
) -> str | None:
    """Return the kind of a fault that is due, and note that it has happened; None if none is.

    Args:
        folder: Folder of the notes.
        faults: All faults of the job.
        stage: Stage to which it would happen.
        tick: Tick up to which faults are due.
        kinds: Kinds that could happen now.
        now: Tick that this process has reached, for the note.
    """
    for number, fault in enumerate(faults):
        if fault.stage != stage or fault.tick > tick or fault.kind not in kinds:
            continue
        note = json.dumps({"tick": now, "time": time.monotonic()})
        try:
            with _note_path(folder, number).open("x") as file:
                file.write(note)
        except FileExistsError:
            continue
        return fault.kind
    return None


def pending_faults(folder: Path, faults: Sequence[Fault]) -> list[Fault]:
    """Return the faults that have not happened yet."""
    return [
        fault for number, fault in enumerate(faults) if not _note_path(folder, number).exists()
    ]


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """Return the ``tick`` and ``time`` of each fault that has happened."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("fault-*.json"))]


def _note_path(folder: Path, number: int) -> Path:
    return folder / f"fault-{number}.json"
