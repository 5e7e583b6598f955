"""``hocket script``: the Python script of a run."""

from dataclasses import replace
from pathlib import Path

from hocket.cli.output import print_result
from hocket.errors import OptionError
from hocket.files import write_text_atomically
from hocket.runs.config import require_writable


def script_command(
    run: Path,
    out: Path | None = None,
    *,
    network: str | None = None,
    method: str | None = None,
    data: str | None = None,
) -> int:
    """Print a Python script that trains as a run has trained, to the same bits.

    Metrics, timeline and summary stay with `hocket train`.

    Args:
        run: Folder of the run.
        out: File to write instead; an older one is replaced.
        network: The network own.py:function of the run, to allow that its code runs.
        method: The same for its method or a remedy.
        data: The same for its data set.

    Raises:
        RunFolderError: It is no run folder, or damaged.
        OptionError: The run has another network, method or data set than is given, or code of
            its own that is not, or the file cannot be written.
    """
    if out is not None:
        require_writable("out", out)
    from hocket.runs.own_code import named_code, refuse_code
    from hocket.runs.read_folder import read_run_folder
    from hocket.runs.resolve import ResolvedRun
    from hocket_lab.report.run_script import write_script

    # Run no code that only the folder names.
    contents = read_run_folder(run)
    config = contents.config
    given = {"network": network, "method": method, "data": data}
    for name, value in given.items():
        if value not in (None, chosen := getattr(config, name)):
            raise OptionError(
                f"{name} is {value!r}, and the run has {chosen!r}; drop --{name}, or begin "
                "another run with it"
            )
    unnamed = [name for name in named_code(vars(config)) if not given[name]]
    refuse_code([(name, getattr(config, name)) for name in unnamed], str(run / "run.json"))
    # Write the script.
    # Sums over other numbers of threads have other bits.
    machine = contents.environment.get("machine", {})
    config = replace(config, threads=machine.get("threads", config.threads))
    text = write_script(ResolvedRun.from_config(config, run), run.name)
    if out is None:
        print_result(text.removesuffix("\n"))
        return 0
    try:
        write_text_atomically(out, text)
    except OSError as error:
        raise OptionError(
            f"cannot write the script to {str(out)!r}: {error.strerror}; name another file "
            "with --out"
        ) from error
    return 0
