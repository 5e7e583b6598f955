"""``hocket script``: the Python script of a run."""

from pathlib import Path

from hocket.runs.config import require_writable


def script_command(run: Path, out: Path | None = None) -> int:
    """Print a Python script that trains as a run has trained, to the same bits.

    Metrics, timeline and summary stay with `hocket train`.

    Args:
        run: Folder of the run.
        out: File to write instead; an older one is replaced.

    Raises:
        RunFolderError: It is no run folder, or damaged.
    """
    if out is not None:
        require_writable("out", out)
    from hocket.runs.read_folder import read_run_folder
    from hocket.runs.resolve import ResolvedRun
    from hocket_lab.report.run_script import write_script

    config = read_run_folder(run).config
    text = write_script(ResolvedRun.from_config(config, run), run.name)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
    return 0
