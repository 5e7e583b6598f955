"""Pictures of faults and of long trainings."""

from pathlib import Path

from benchmarks.harness.record import Record
from benchmarks.report.figures import label_axes, label_rows, line_style, new_figure, save_svg


def faults_picture(record: Record, path: Path) -> Path:
    """Draw the times to detection, a row for each kind of fault."""
    timed = [row for row in record.rows if row.get("detected_s") is not None]
    kinds = list(dict.fromkeys(row["row"] for row in timed))
    figure, axes = new_figure(8, 1.2 + 0.3 * len(kinds))
    places = [kinds.index(row["row"]) for row in timed]
    axes.plot([row["detected_s"] for row in timed], places, "o", alpha=0.5)
    label_rows(axes, kinds)
    axes.set_xlim(left=0)
    axes.set_xlabel("from the fault to the end of all processes, s")
    axes.grid(alpha=0.3)
    return save_svg(figure, path)


def endurance_picture(record: Record, path: Path) -> Path:
    """Draw the memory of each training over its ticks."""
    figure, axes = new_figure()
    for number, row in enumerate(record.rows):
        shares = [
            (place + 1) / len(row["memory_mib"]) for place in range(len(row["memory_mib"]))
        ]
        axes.plot(shares, row["memory_mib"], **line_style(number), label=row["row"])
    label_axes(axes, "part of the ticks", "memory of the process, MiB")
    return save_svg(figure, path)
