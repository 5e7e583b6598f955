"""``hocket report``: runs side by side in one HTML file."""

from pathlib import Path

from hocket.cli.output import print_note, print_warning
from hocket.runs.config import require_writable


def report_command(*folders: Path, out: Path = Path("report.html")) -> int:
    """Compare runs in one HTML file that loads nothing, to look at in a browser and to send.

    Runs that differ in their seed only are shown as one, with their spread. A folder that
    cannot be read is left out, with a warning.

    Args:
        folders: Folders of runs, folders of such folders, or folders of studies.
        out: File to write; an older one is replaced.
    """
    require_writable("out", out)
    from hocket_lab.report.find_runs import find_runs
    from hocket_lab.report.page import write_report

    found = write_report(find_runs(folders), out)
    for reason in found.left_out:
        print_warning(f"left out: {reason}")
    runs = f"{len(found.runs)} run{'s' if len(found.runs) > 1 else ''}"
    missed = f", without the {len(found.left_out)} left out," if found.left_out else ""
    print_note(f"the report of {runs}{missed} is in {out}")
    return 0
