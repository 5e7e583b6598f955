"""Files of spans in Chrome's trace format, for https://ui.perfetto.dev and chrome://tracing.

There is a row for each stage, and an arrow from the action that sent a packet to the one that
used it. Times are in microseconds, rounded to nanoseconds.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

from hocket.errors import DataError, OptionError
from hocket.files import read_json, write_text_atomically
from hocket.timeline.recorder import Span

FORMAT = "hocket timeline 1"
# Packets sent by an action: name, kind of the action that uses it, and its stage's offset.
PACKETS = {
    "F": (("activation", "F", 1),),
    "B": (("gradient", "B", -1), ("target", "T", -1)),
}


def write_trace(file: Path, spans: Sequence[Span], pieces: Sequence[Span]) -> None:
    """Write spans to a file.

    Args:
        file: File to write.
        spans: Spans to write.
        pieces: The same time in pieces that do not overlap, sorted by time, for the arrows.

    Raises:
        OptionError: The file cannot be written.
    """
    titles = [
        {"ph": "M", "name": name, "pid": k, "tid": k, "args": {"name": f"stage {k}"}}
        for k in sorted({span.stage for span in spans})
        for name in ("process_name", "thread_name")
    ]
    content = {
        "otherData": {"format": FORMAT},
        "displayTimeUnit": "ms",
        # Arrows last: each binds to the event before it in the file that begins at its time.
        "traceEvents": [*titles, *map(_build_event, spans), *_flow_events(pieces)],
    }
    try:
        write_text_atomically(file, json.dumps(content))
    except OSError as error:
        raise OptionError(
            f"cannot write the timeline to {str(file)!r}: {error.strerror}; name another file"
        ) from error


def read_events(file: Path) -> list[Any]:
    """Read the events of a file that :func:`write_trace` wrote.

    Raises:
        DataError: The file is missing, damaged, or of another program.
    """
    where = f"cannot read the timeline {str(file)!r}"
    try:
        content = read_json(file, limit=sys.maxsize)
    except OSError as error:
        raise DataError(f"{where}: {error.strerror}; name a file to read") from error
    except ValueError as error:
        raise DataError(f"{where}: it is not JSON ({error}); record it again") from error
    if not isinstance(content, dict) or content.get("otherData") != {"format": FORMAT}:
        raise DataError(
            f"{where}: it has no mark {FORMAT!r}; use a file that Hocket has written"
        )
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise DataError(f"{where}: it has no list of traceEvents; record it again")
    return events


def _ns(seconds: float) -> int:
    """Round to nanoseconds: sums of rounded fractions would make neighbours overlap."""
    return round(seconds * 1e9)


def _build_event(span: Span) -> dict[str, Any]:
    start_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
    return _event_position(span.stage, start_ns) | {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "dur": (end_ns - start_ns) / 1e3,
        "args": {"batch": span.batch, "tick": span.tick},
    }


def parse_span(event: Mapping[str, Any]) -> Span:
    """Return the span of an event whose phase is X.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError: It is damaged.
    """
    start_ns, length_ns = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
    return Span(
        stage=index(event["pid"]),
        kind=event["cat"],
        batch=index(event["args"]["batch"]),
        tick=index(event["args"]["tick"]),
        start_s=start_ns / 1e9,
        end_s=(start_ns + length_ns) / 1e9,
    )


def _flow_events(pieces: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """Build arrows from forwards to the next stage, and from backwards to the previous one.

    An action begins its work after the last wait inside it. A receiver that began before the
    sender did not use the packet: its stage has a local error signal.
    """
    work = _working_pieces(pieces)
    count = 0
    for (kind, stage, batch), (first_piece, last_piece) in work.items():
        for name, receiver_kind, offset in PACKETS.get(kind, ()):
            receiver, _ = work.get((receiver_kind, stage + offset, batch), (None, None))
            if receiver is None or receiver.start_s < first_piece.start_s:
                continue
            count += 1
            arrival_ns = _ns(receiver.start_s)
            # A nanosecond before the end, to lie in the span; never after the arrival.
            departure_ns = min(_ns(last_piece.end_s) - 1, arrival_ns)
            arrow = {"cat": "packet", "name": name, "id": count}
            yield arrow | _event_position(stage, departure_ns) | {"ph": "s"}
            yield arrow | _event_position(receiver.stage, arrival_ns) | {"ph": "f", "bp": "e"}


def _event_position(stage: int, time_ns: int) -> dict[str, Any]:
    return {"pid": stage, "tid": stage, "ts": time_ns / 1e3}


def _working_pieces(pieces: Sequence[Span]) -> dict[tuple[str, int, int], tuple[Span, Span]]:
    """Return the first piece after the last wait, and the last piece, of each action."""
    work: dict[tuple[str, int, int], tuple[Span, Span]] = {}
    previous: dict[int, Span] = {}
    for piece in pieces:
        key = (piece.kind, piece.stage, piece.batch)
        waited = piece.stage in previous and previous[piece.stage].kind == "wait"
        first_piece = piece if waited or key not in work else work[key][0]
        work[key] = (first_piece, piece)
        previous[piece.stage] = piece
    return work
