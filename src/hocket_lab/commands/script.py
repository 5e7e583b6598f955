"""``hocket script``: the Python script of a run."""

from pathlib import Path

from hocket.errors import OptionError


def script_command(run: Path) -> int:
    """Print a Python script that trains as a run has trained, to the same bits.

    Metrics, timeline and summary stay with `hocket train`.

    Args:
        run: Folder of the run.

    Raises:
        OptionError: It is no run folder.
    """
    from hocket.runs.config import RunConfig
    from hocket.runs.resolve import ResolvedRun
    from hocket_lab.report.run_script import write_script

    if not (file := run / "run.json").is_file():
        raise OptionError(
            f"{str(run)!r} is no run folder, as it has no run.json; name one that "
            "`hocket train` printed, in runs/ by default"
        )
    print(write_script(ResolvedRun.from_config(RunConfig.read(file), run), run.name), end="")
    return 0
