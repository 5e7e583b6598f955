"""Spans as a file in Chrome's trace format.

https://ui.perfetto.dev and chrome://tracing open it: a row for each stage, arrows from what was
sent to what it fed. Times are in microseconds, to a nanosecond.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.errors import DataError, OptionError, listed
from hocket.timeline.span import Span

FORMAT = "hocket timeline 1"
WHOLE, NUMBER, TEXT = (int,), (int, float), (str,)
WORDS: Mapping[tuple[type, ...], str] = {
    WHOLE: "a whole number",
    NUMBER: "a number",
    TEXT: "a text",
}
# The fields of an event that are read.
FIELDS: Mapping[str, tuple[type, ...]] = {
    "cat": TEXT,
    "pid": WHOLE,
    "ts": NUMBER,
    "dur": NUMBER,
    "batch": WHOLE,
    "tick": WHOLE,
}
# What an action sends: its name, the kind of action that it feeds, and how many stages on.
FEEDS = {
    "F": (("activation", "F", 1),),
    "B": (("gradient", "B", -1), ("target", "T", -1)),
}


def write_trace(file: Path, spans: Sequence[Span], pieces: Sequence[Span]) -> None:
    """Write spans.

    Args:
        file: Where to.
        spans: What to write.
        pieces: The same without anything that lies in another, in the order of time.

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
        # Arrows last: they bind to what begins at their time and stands before them.
        "traceEvents": [*titles, *map(_event, spans), *_arrows(pieces)],
    }
    try:
        file.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"cannot write the timeline to {str(file)!r}: {error.strerror}; name another file"
        ) from error


def read_trace(file: Path) -> tuple[Span, ...]:
    """The spans of a file that :func:`write` wrote.

    Raises:
        DataError: The file is missing, damaged, or of another program.
    """
    where = f"cannot read the timeline {str(file)!r}"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{where}: {error.strerror}; name a file to read") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: it is not JSON ({error}); record it again") from error
    if not isinstance(content, dict) or content.get("otherData") != {"format": FORMAT}:
        raise DataError(
            f"{where}: found no mark {FORMAT!r} in it; use a file that Hocket has written"
        )
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise DataError(f"{where}: found no list of traceEvents; record it again")
    # Titles and arrows follow from the spans.
    rows = [
        (place, event)
        for place, event in enumerate(events)
        if not (isinstance(event, dict) and event.get("ph") in ("M", "s", "f"))
    ]
    problems = [f"event {place}: {wrong}" for place, event in rows for wrong in _wrong(event)]
    if problems:
        raise DataError(some(f"{where}; record it again", problems))
    return tuple(_span(event) for _, event in rows)


def some(title: str, problems: Sequence[str], shown: int = 5) -> str:
    """The first problems; what is damaged may have one in every line.

    >>> print(some("two of three", ["a", "b", "c"], shown=2))
    two of three:
      - a
      - b
      - 1 more
    """
    more = [f"{len(problems) - shown} more"] if len(problems) > shown else []
    return listed(title, [*problems[:shown], *more])


def _wrong(event: Any) -> Iterator[str]:
    """What is missing of an event, or is not what it should be."""
    args = event.get("args") if isinstance(event, dict) else None
    if not isinstance(args, dict) or event.get("ph") != "X":
        yield f"found {str(event)[:60]!r}; wanted an object with ph 'X' and args"
        return
    for field, types in FIELDS.items():
        value: Any = (args if field in ("batch", "tick") else event).get(field)
        # The limit refuses what is infinite or not a number; in time it is 30 years.
        if type(value) not in types or (types != TEXT and not -1e15 < value < 1e15):
            yield f"{field} is {value!r}; wanted {WORDS[types]}"


def _ns(seconds: float) -> int:
    """Whole nanoseconds: sums of rounded fractions would let neighbours overlap."""
    return round(seconds * 1e9)


def _event(span: Span) -> dict[str, Any]:
    start_ns, end_ns = _ns(span.start_s), _ns(span.end_s)
    return _at(span.stage, start_ns) | {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "dur": (end_ns - start_ns) / 1e3,
        "args": {"batch": span.batch, "tick": span.tick},
    }


def _span(event: Mapping[str, Any]) -> Span:
    start_ns, length_ns = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
    return Span(
        stage=event["pid"],
        kind=event["cat"],
        batch=event["args"]["batch"],
        tick=event["args"]["tick"],
        start_s=start_ns / 1e9,
        end_s=(start_ns + length_ns) / 1e9,
    )


def _arrows(pieces: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """From forwards to those of the next stage, from backwards to the stage before.

    An action begins its own work after the last wait inside it. Where that was before the
    other action began, it was not fed by it: stages with a signal of their own.
    """
    work = _work(pieces)
    number = 0
    for (kind, stage, batch), (begun, done) in work.items():
        for name, fed_kind, step in FEEDS.get(kind, ()):
            fed, _ = work.get((fed_kind, stage + step, batch), (None, None))
            if fed is None or fed.start_s < begun.start_s:
                continue
            number += 1
            arrives_ns = _ns(fed.start_s)
            # A nanosecond before the end, to lie in the span; never after it arrives.
            leaves_ns = min(_ns(done.end_s) - 1, arrives_ns)
            arrow = {"cat": "packet", "name": name, "id": number}
            yield arrow | _at(stage, leaves_ns) | {"ph": "s"}
            yield arrow | _at(fed.stage, arrives_ns) | {"ph": "f", "bp": "e"}


def _at(stage: int, time_ns: int) -> dict[str, Any]:
    return {"pid": stage, "tid": stage, "ts": time_ns / 1e3}


def _work(pieces: Sequence[Span]) -> dict[tuple[str, int, int], tuple[Span, Span]]:
    """Of each action, the first piece after its waits and the last."""
    work: dict[tuple[str, int, int], tuple[Span, Span]] = {}
    before: dict[int, Span] = {}
    for piece in pieces:
        key = (piece.kind, piece.stage, piece.batch)
        waited = piece.stage in before and before[piece.stage].kind == "wait"
        begun = piece if waited or key not in work else work[key][0]
        work[key] = (begun, piece)
        before[piece.stage] = piece
    return work
