"""``hocket draw``: the program of a method or a measured timeline, as text or as a picture."""

from pathlib import Path

from hocket.cli.output import print_note, print_result, print_tables
from hocket.errors import OptionError
from hocket.runs.config import require_writable

BATCHES_SHOWN = 6


def draw_command(
    *,
    method: str | None = None,
    stages: int | None = None,
    staleness: str | None = None,
    batches: int | None = None,
    first: int | None = None,
    timeline: Path | None = None,
    out: Path | None = None,
) -> int:
    """Print or draw the program of a method tick by tick, or a timeline that was measured.

    Args:
        method: For example ddg, or adl:accumulate=2; fdg if there is no timeline. With a
            timeline its program is drawn above the measurement.
        stages: Number of stages; by default 3, or as in the timeline.
        staleness: Staleness of each stage instead of the method's, such as 6,4,2,0.
        batches: Number of batches to train on, or to show of a timeline; 6 if not given.
        first: First batch of the timeline to show.
        timeline: Timeline to draw; without --out its busy, sending and waiting times are
            printed.
        out: Picture to write: .svg, .png or .pdf.

    Raises:
        OptionError: There is no batch to draw, the staleness is none of the method on so many
            stages, or an option has no effect with or without a timeline.
    """
    # Check the options, and leave a timeline to its own function.
    if batches is not None and batches < 1:
        raise OptionError(f"batches is {batches}; use at least 1")
    if out is not None:
        require_writable("out", out)
    if timeline is not None:
        if staleness is not None:
            raise OptionError(
                f"staleness is {staleness!r}, but a timeline has one already; drop --staleness"
            )
        return _show_timeline(timeline, method, stages, batches, first, out)
    if first is not None:
        raise OptionError(
            f"first is {first}, but there is no timeline; add --timeline or drop --first"
        )
    from hocket.methods import parse_method
    from hocket.methods.simulated.delays import parse_staleness, with_staleness
    from hocket.program import format_program, unroll

    # Unroll the program of the method.
    parsed = parse_method(method := method or "fdg")
    profile = None if staleness is None else parse_staleness(staleness)
    if stages is None:
        stages = 3 if profile is None else len(profile)
    if profile is not None:
        parsed = with_staleness(parsed, profile)
    ticks = list(unroll(parsed, stages, batches or BATCHES_SHOWN))
    # Draw it and print it.
    if out is not None:
        from hocket.runs.plot import draw_program

        given = f", staleness {staleness}" if staleness is not None else ""
        draw_program(ticks, stages, f"{method} on {stages} stages{given}", out)
        print_note(f"drawn to {out}")
    print_result(format_program(ticks, stages))
    return 0


def _show_timeline(
    file: Path,
    method: str | None,
    stages: int | None,
    batches: int | None,
    first: int | None,
    out: Path | None,
) -> int:
    """Print the times of a timeline or draw it, below a method's program if one is given.

    Raises:
        OptionError: The timeline has another number of stages, or a method is given without a
            picture.
    """
    from hocket.methods import parse_method
    from hocket.program.program import unroll
    from hocket.runs.tables import timeline_table
    from hocket.timeline import Timeline

    # Read the timeline.
    timeline = Timeline.read(file)
    stage_count = len(timeline.stages)
    if stages not in (None, stage_count):
        raise OptionError(
            f"stages is {stages}, but {str(file)!r} has {stage_count}; drop --stages"
        )
    # Print its times.
    if out is None:
        if method is not None:
            raise OptionError(
                f"method is {method!r}, but a program is shown with a timeline only in a "
                "picture; add --out or drop --method"
            )
        window_given = (first, batches) != (None, None)
        shown = timeline.window(first, batches) if window_given else timeline
        print_tables(timeline_table(shown))
        return 0
    # Draw some batches of it, below as many of the program.
    from hocket.runs.plot import draw_panels, program_panel, timeline_panel

    count = batches or BATCHES_SHOWN
    panels = [timeline_panel(timeline.window(first, count), f"measured: {file.name}")]
    if method is not None:
        parsed = parse_method(method)
        first = timeline.batches[0] if first is None else first
        # As many batches as enter before the last one shown has left.
        entering = min(timeline.batches[-1] + 1, first + count + parsed.delay(0, stage_count))
        ticks = list(unroll(parsed, stage_count, entering))
        title = f"{method} on {stage_count} stages"
        panels.insert(0, program_panel(ticks, stage_count, title, first, count))
    draw_panels(panels, out)
    print_note(f"drawn to {out}")
    return 0
